"""The rule `report`: the site, from Parquet alone."""

from dataclasses import replace

from relation.pipeline.campaign import Campaign
from relation.pipeline.results import Results
from report.render.content import gather
from report.render.pipeline import campaign_pipeline
from report.render.runs import read_runs
from report.render.site import render_site


def render_report(campaign: Campaign, results: Results) -> None:
    """Render every page into the report's folder. Raises InputError for a damaged file."""
    content = gather(results.report)
    content = replace(
        content,
        runs=read_runs(campaign.planned_runs, results, content.missing),
        further=read_runs(campaign.planned_further, results, content.missing, "further run"),
        pipeline=campaign_pipeline(results),
    )
    render_site(content, results.report)
