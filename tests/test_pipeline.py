"""The graph that the site draws of a campaign, held to Snakemake's own."""

import re

import pytest
from conftest import ROOT, copy_project, snakemake

from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from report.render.pipeline import campaign_pipeline
from report.render.runs import Run


def closure(edges):
    """Every pair that some path joins."""
    edges = set(edges)
    while True:
        further = {(a, d) for a, b in edges for c, d in edges if b == c} - edges
        if not further:
            return edges
        edges |= further


@pytest.mark.campaign
def test_the_drawn_graph_is_that_of_snakemake(tmp_path):
    project = copy_project(tmp_path / "project")
    campaign = resolve(load_config(ROOT / "config.yaml"), campaign="tiny")
    runs, further = (
        [Run(run.scale, run.variant, run.seed) for run in planned]
        for planned in (campaign.planned_runs, campaign.planned_further)
    )
    pipeline = campaign_pipeline(campaign, runs, [], further)
    arguments = ("--config", "campaign=tiny")
    graph = snakemake(project, "--rulegraph", "--forceall", *arguments).stdout
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', graph))
    edges = {(names[a], names[b]) for a, b in re.findall(r"(\d+) -> (\d+)", graph)}
    assert closure(pipeline.edges) == {pair for pair in closure(edges) if "all" not in pair}
    listing = snakemake(project, "--dry-run", "--forceall", *arguments).stdout
    planned = dict(re.findall(r"^(\w+) +(\d+)$", listing, re.MULTILINE))
    assert all(done == jobs for _, done, jobs, _ in pipeline.counts)
    assert {rule: str(jobs) for rule, _, jobs, _ in pipeline.counts} == {
        rule: count for rule, count in planned.items() if rule not in ("all", "total")
    }
