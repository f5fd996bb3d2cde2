"""The commands that the report prints: Snakemake takes each as it stands and does what it says."""

import shlex
from pathlib import Path

import pytest
from conftest import copy_project, planned_jobs, snakemake
from snakemake.cli import parse_config
from test_config import config
from test_records import ORIGIN

from relation.pipeline.campaign import Campaign, resolve
from relation.pipeline.ledger import Ledger
from relation.pipeline.provenance import command_for, provenance_row
from relation.pipeline.results import Results

CHOICES = {"scales": "10M", "seeds": "42,43", "variants": ["mha", "full"]}


def texts(corpus: str, **choices) -> Campaign:
    return resolve(config(), campaign="smoke", corpus=corpus, **choices)


@pytest.mark.parametrize("corpus", [
    "texts", "/data/my texts", "it's", 'say "no"', "'quoted'", "a: b", "a #b", "#c", "[x]", "- a",
    "2024", "1e3", "1_000", "nan", "True", "null", "~/texts", "x=y", "a,b", " around ", "ab:",
    "$HOME/`x`", "back\\slash", "猫", "new\nline", "*", "{a", "!t",
])  # fmt: skip
def test_a_corpus_of_any_name_comes_back_from_the_printed_command(corpus: str) -> None:
    words = shlex.split(command_for(texts(corpus, **CHOICES)))
    assert words[:4] == ["snakemake", "--cores", "all", "--config"]
    given = parse_config(words[4:])
    again = resolve(config(), **given)
    assert (again.corpus, again.runs) == (corpus, texts(corpus, **CHOICES).runs)
    assert len(again.runs) == 4


def test_what_needs_no_quotes_has_none() -> None:
    command = command_for(texts("data/my-texts", seeds=42))
    assert command.endswith("--config campaign=smoke seeds=42 corpus=data/my-texts")


def test_a_campaign_on_local_texts_is_given_the_published_ones() -> None:
    """As of shipped records, whose texts are not there."""
    assert command_for(resolve(config(), campaign="books")).endswith("campaign=books corpus=books")
    for name in ("paper", "smoke"):
        assert "corpus" not in command_for(resolve(config(), campaign=name))


@pytest.mark.parametrize("campaign, processes, said", [
    ("books", (), ""),
    ("books", (4, 1), ""),
    ("books", (1, 4), " --set-resources train:gpu=4"),
    ("smoke", (2,), " --set-resources train:processes=2"),
])  # fmt: skip
def test_a_run_of_several_processes_is_run_again_by_as_many(campaign, processes, said) -> None:
    planned = resolve(config(), campaign=campaign)
    for source in Ledger(Results(planned)).records:
        if source.path is None:  # the run was published without it
            continue
        command = provenance_row(source, ORIGIN | {"processes": processes}, planned)["rerun"]
        trained = said if source.job.stage == "training" else ""
        assert command.startswith(f"{command_for(planned)}{trained} -")
        assert trained or "--set-resources" not in command


@pytest.mark.campaign
def test_snakemake_takes_the_command_of_a_record(tmp_path: Path) -> None:
    """Of a restricted campaign on texts in a folder whose name has a space and a hash sign."""
    project = copy_project(tmp_path / "a project")
    folder = project / "my texts #1"
    folder.mkdir()
    (folder / "text.txt").write_text("Once.<|endoftext|>Twice.", encoding="utf-8")
    campaign = texts("my texts #1", **CHOICES)
    rows = {}
    for source in Ledger(Results(campaign)).records:
        rows.setdefault(source.kind, provenance_row(source, ORIGIN, campaign)["rerun"])
    for kind, forced in (("run", "train"), ("systems", "measure")):
        program, *arguments = shlex.split(rows[kind])
        assert program == "snakemake"
        said = snakemake(project, "--dry-run", *arguments).stdout
        assert f"forced:\n        {forced}\n" in said
    shared = ORIGIN | {"processes": [2]}
    run = next(s for s in Ledger(Results(campaign)).records if s.kind == "run")
    again = shlex.split(provenance_row(run, shared, campaign)["rerun"])[1:]
    said = snakemake(project, "--dry-run", "--printshellcmds", *again).stdout
    assert said.count("relation train ") == said.count("--processes 2 ") > 0
    *restricted, _, target, _, _ = shlex.split(rows["models"])[1:]
    assert target.endswith("models.parquet")
    assert planned_jobs(project, *restricted, "--", target) == {"inventory": 1}
