"""The rule `report`: the site, from Parquet alone."""

from relation.config import Campaign
from relation.results import Results
from report.site import gather, render_site


def render_report(campaign: Campaign, results: Results) -> None:
    """Render every page into the report's folder."""
    render_site(gather(campaign, results), results.report)
