"""The rule `report`: the site, from Parquet alone."""

from relation.pipeline.campaign import Campaign
from relation.pipeline.results import Results
from report.render.site import render_site
from report.render.site_content import gather


def render_report(campaign: Campaign, results: Results) -> None:
    """Render every page into the report's folder."""
    render_site(gather(campaign, results), results.report)
