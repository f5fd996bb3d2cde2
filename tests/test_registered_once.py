"""A variant, a benchmark, a campaign, a table and a figure: each is added in one place."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import copy_project, run_module, snakemake

from relation.store.parquet import read_parquet

pytestmark = pytest.mark.campaign

VARIANT = 'Variant("toy-variant", "Toy variant", count_calibration=False, givens=False)'
BENCHMARK = """    toy_benchmark: LinearSteady | None = key("Toy", default=None)

    @property
    def benchmarks"""
TABLE = """

from dataclasses import replace

TOY_TABLE = replace(STRUCTURAL_ABLATIONS, label="toy-table", number="99", title="Toy table")
"""
TOLERANCE = """
[[rule]]
table = "toy-table"
kind = "none"
why = "A toy."
"""
FIGURE = """

@figure("toy-figure", heading="Toy figure", title="Toys.", alt="Toys.", reads=_read_losses)
def toy_figure(records: CampaignRecords) -> Figure:
    logs, _ = _read_losses(records)
    demand(len(logs) > 0, "toy", records, "run")
    return by_scale(logs, lambda *_: None, 1.0, ["toy"], "toy")
"""
CAMPAIGN = """
campaigns:
  toy:
    base: tiny
    title: Toy campaign
    scales:
      10M: {variants: [mha, full, toy-variant]}
    systems:
      toy_benchmark: {context: 8, batches: {10M: [2, 2]}}
"""


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} no longer holds {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with a toy of each kind."""
    project = copy_project(tmp_path_factory.mktemp("toys") / "project")
    edit(
        project / "relation/variants.py",
        '    Variant("linear"',
        f'    {VARIANT},\n    Variant("linear"',
    )
    edit(
        project / "relation/pipeline/systems.py",
        "\n    @property\n    def benchmarks",
        f"{BENCHMARK}",
    )
    edit(project / "config.yaml", "\ncampaigns:\n", CAMPAIGN)
    with (project / "report/values/ablations.py").open("a", encoding="utf-8") as file:
        file.write(TABLE)
    with (project / "report/figures/training.py").open("a", encoding="utf-8") as file:
        file.write(FIGURE)
    # What the paper prints in the table, and how close is close enough, are data of the table's.
    paper = project / "report/paper"
    shutil.copy(paper / "structural-ablations.csv", paper / "toy-table.csv")
    with (project / "report/tolerances.toml").open("a", encoding="utf-8") as file:
        file.write(TOLERANCE)
    return project


def relation(project: Path, *arguments: str) -> str:
    """What a command prints in the project's folder."""
    done = run_module(project, "relation", *arguments, "--campaign", "toy")
    assert not done.returncode, done.stdout
    return done.stdout


def test_params_counts_the_toy_variant(project: Path) -> None:
    models = json.loads(relation(project, "params", "--json"))
    assert ("10M", "toy-variant") in {(row["scale"], row["variant"]) for row in models}


def test_plan_counts_the_toy_runs_benchmark_and_table(project: Path) -> None:
    plan = json.loads(relation(project, "plan", "--json"))
    jobs = {stage["stage"]: stage["jobs"] for stage in plan["stages"]}
    assert jobs["other runs"] == 2 + 2 and jobs["systems"] == 12 + 1
    assert "toy-table" in {table["label"] for table in plan["tables"]}


def test_the_workflow_trains_and_measures_the_toys(project: Path) -> None:
    planned = snakemake(project, "--dry-run", "--config", "campaign=toy").stdout
    for job in ("train 10M/toy-variant/42", "measure toy-benchmark/10M"):
        assert job in planned
    assert (
        "toy-table"
        in snakemake(
            project,
            "--dry-run",
            "--config",
            "campaign=toy",
            "--",
            "results/toy/report/tables/toy-table.html",
        ).stdout
    )


def test_the_report_has_the_toy_table_and_figure(project: Path) -> None:
    relation(project, "render")
    report = project / "results/toy/so-far"
    cells = read_parquet(report / "cells.parquet").to_pylist()
    assert {cell["column"] for cell in cells if cell["table"] == "toy-table"} >= {"full", "raw-x"}
    figures = read_parquet(report / "figures.parquet").to_pylist()
    assert "toy-figure" in {figure["name"] for figure in figures}
    assert "Toy campaign" in (report / "index.html").read_text(encoding="utf-8")
    assert (report / "tables/toy-table.html").exists()
    assert "toy-table" in (report / "report.tex").read_text(encoding="utf-8")
