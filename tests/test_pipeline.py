"""The page of a campaign's jobs: held to Snakemake's own graph, and what each square says."""

import re
from pathlib import Path

import pytest
from conftest import campaign, copy_project, snakemake
from status_files import finish

from relation.pipeline.campaign import Campaign
from relation.pipeline.results import Results
from report.render.pipeline import Rule, campaign_pipeline


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
    pipeline = campaign_pipeline(Results(campaign(), project / "results"))
    needs = {(need, rule.name) for rule in pipeline for need in rule.needs}
    arguments = ("--config", "campaign=tiny")
    graph = snakemake(project, "--rulegraph", "--forceall", *arguments).stdout
    names = dict(re.findall(r'(\d+)\[label = "(\w+)"', graph))
    edges = {(names[a], names[b]) for a, b in re.findall(r"(\d+) -> (\d+)", graph)}
    assert closure(needs) == {pair for pair in closure(edges) if "all" not in pair}
    listing = snakemake(project, "--dry-run", "--forceall", *arguments).stdout
    planned = dict(re.findall(r"^(\w+) +(\d+)$", listing, re.MULTILINE))
    assert {rule.name: str(len(rule.squares)) for rule in pipeline} == {
        rule: count for rule, count in planned.items() if rule not in ("all", "total")
    }


def rules_of(chosen: Campaign, root: Path = Path("nowhere")) -> dict[str, Rule]:
    return {rule.name: rule for rule in campaign_pipeline(Results(chosen, root))}


def test_a_further_pair_is_a_square_a_run_that_leads_to_its_row() -> None:
    rows = rules_of(campaign("books"))["train"].groups["10M, further pairs"]
    assert list(rows) == ["mha", "full"]
    for squares in rows.values():
        assert [s.page for s in squares] == [f"runs.html#further-10M-{n}" for n in range(45, 73)]
        assert all(square.missing for square in squares)


def test_what_restrictions_leave_out_is_a_hollow_square_with_the_reason() -> None:
    train = rules_of(campaign(seeds="42"))["train"]
    seen = {square.title: square.missing for square in train.groups["10M"]["mha"]}
    assert seen["10M/mha/42: to be done"] and len(seen) > 1
    assert all("left out" in title for title in seen if "/42" not in title)


def test_a_corpus_was_prepared_when_a_job_that_read_it_is_done(tmp_path) -> None:
    """Shipped records come without the tokens."""
    assert rules_of(campaign(), tmp_path)["prepare"].done == 0
    finish(Results(campaign(), tmp_path), campaign().planned_runs[0])
    rules = rules_of(campaign(), tmp_path)
    assert rules["train"].done == rules["prepare"].done == 1
    square = next(square for square in rules["train"].squares if not square.missing)
    assert square.title.endswith(": done") and square.page.startswith("runs/")


def test_a_reading_has_a_square_a_run() -> None:
    rules = rules_of(campaign("readings"))
    runs = len(campaign("readings").reading_runs)
    for name in ("train_reading", "diagnose_reading"):
        assert len(rules[name].squares) == runs
        assert not any(square.page for square in rules[name].squares), "none has run"
    assert "train_reading" not in rules_of(campaign("books"))
