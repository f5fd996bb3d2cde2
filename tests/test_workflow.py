"""The whole DAG on the tiny campaign: complete, idle when done, stale only where it should be."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from conftest import ROOT, copy_project, planned_jobs, run_module, snakemake
from sample import documents
from test_edits import EDITS as HASHED

from relation.pipeline.campaign import resolve
from relation.pipeline.config import load_config
from relation.pipeline.places import READING_KINDS
from relation.pipeline.results import Results
from relation.pipeline.shipped import ARCHIVE
from relation.store.parquet import read_origin
from report.judge.frames import FRAMES
from report.judge.job import write_cells
from report.render.typeset import can_typeset
from report.values.frames import load_records
from report.values.tables import EVERY, TABLES

pytestmark = pytest.mark.campaign
TINY = ("--config", "campaign=tiny")
RUN = "results/tiny/runs/10M/full/42"
REPORT = {"cells", "figures", "report", "document", "all"}
# The rules that train, and those that look at what they trained, of the matrix and of readings.
TRAINED, DIAGNOSED = {"train", "train_reading"}, {"diagnose", "diagnose_reading", "collect"}
# How many jobs the campaign has of each of them, where nothing is done.
WHOLE = {"train": 28, "train_reading": 4, "diagnose": 12, "diagnose_reading": 4, "collect": 1}
WHOLE |= {"examine": 6, "recall": 2}
MEASURED = 6
PUBLISHED = ("--snakefile", "workflow/published.smk", "--cores", "1")


def copy_with_few_benchmarks(target: Path) -> Path:
    """A copy of the project whose benchmarks are of one scale each."""
    config = copy_project(target) / "config.yaml"
    text, batches = config.read_text("utf-8"), r"(batches: \{)[^}]*?(30M: \[[^]]*\])[^}]*"
    config.write_text(re.sub(batches, r"\1\2", text), "utf-8")
    return target


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the tiny campaign run from nothing."""
    project = copy_with_few_benchmarks(tmp_path_factory.mktemp("project") / "relation-copy")
    jobs = planned_jobs(project, *TINY)
    assert WHOLE.items() < jobs.items() and jobs["measure"] == MEASURED
    snakemake(project, *TINY)
    for log in (project / "results/tiny/logs").rglob("*.log"):
        assert "not forked" not in log.read_text(encoding="utf-8"), log
    return project


@pytest.fixture(scope="module")
def clone(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, in a folder with a space, that ships the tiny campaign's records and nothing else."""
    clone = copy_with_few_benchmarks(tmp_path_factory.mktemp("clone") / "relation copy")
    relation(project, "publish", "--campaign", "tiny")
    (clone / "results").mkdir()
    (project / "results/published").rename(clone / "results/published")
    return clone


def relation(project: Path, *arguments: str) -> None:
    """Run the command line in a project's folder."""
    done = run_module(project, "relation", *arguments)
    assert done.returncode == 0, done.stdout


def diagnosis(project: Path) -> Path:
    return project / "results/tiny/diagnostics/10M/full/42.parquet"


def nll(project: Path) -> float:
    return pq.read_table(project / RUN / "record.parquet")["final_nll"][0].as_py()


def test_every_table_is_there_in_both_forms(project: Path) -> None:
    folder = project / "results/tiny/report"
    assert len(TABLES) == 17
    for table in EVERY:
        html = (folder / "tables" / f"{table.label}.html").read_text(encoding="utf-8")
        tex = (folder / "tables" / f"{table.label}.tex").read_text(encoding="utf-8")
        assert f"\\label{{tab:{table.label}}}" in tex
        assert "ot the paper's setting" in html and "ot the paper's setting" in tex
        page = folder / ("index.html" if table in TABLES else "beyond.html")
        assert f"tables/{table.label}.html" in page.read_text(encoding="utf-8")
    assert (folder / "report.pdf").exists() == can_typeset()


def test_further_pairs_stand_apart_in_every_form_and_alone(project: Path, tmp_path: Path) -> None:
    """Seeds 44 and 45 of 10M are in panel (b); `seeds=45` leaves the matrix empty."""
    folder = project / "results/tiny/report"
    for form in ("html", "tex"):
        text = (folder / f"tables/app-nll.{form}").read_text(encoding="utf-8")
        assert "(b) Further pairs" in text and "2 of 2" in text
    csv = (folder / "tables/app-nll.csv").read_text(encoding="utf-8")
    assert "10M/further,further.correlation,value" in csv and "three pairs" in csv
    assert "10M/full/44" in (folder / "runs.html").read_text(encoding="utf-8")
    assert not (folder / "runs/10M-full-44.html").exists()
    assert (folder / "figures/further-pairs.svg").exists()

    campaign = resolve(load_config(project / "config.yaml"), campaign="tiny", seeds="45")
    records = load_records(campaign, Results(campaign, project / "results"), partial=True)
    write_cells(records, tmp_path)
    cells = pq.read_table(tmp_path / "cells.parquet").to_pandas()
    nll = cells[(cells["table"] == "app-nll") & (cells["statistic"] == "value")]
    nll = nll.set_index(["row", "column"])
    assert nll["status"]["10M/42", "delta"] == nll["status"]["10M/mean", "delta"] == "not run"
    assert nll["value"]["10M/further", "further.pairs"] == 1
    assert nll["status"]["10M/further", "further.delta"] == "ok"
    assert nll["status"]["10M/further", "further.spread"] == "undetermined"


def test_every_stage_writes_parquet_with_units_and_origin(project: Path) -> None:
    files = sorted((project / "results/tiny").rglob("*.parquet"))
    data, models, runs, diagnostics, checks = 2, 1, 32 * 3, 16 * 3, 2
    made = data + models + runs + diagnostics + len(READING_KINDS) + MEASURED + checks
    made += 3 * WHOLE["examine"] + WHOLE["recall"]
    assert len(files) == made + len(FRAMES) + 1
    for path in files:
        origin = read_origin(path)
        assert origin["campaign"] == "tiny" and origin["config_hash"] and origin["code_hash"]
        assert origin["versions"]["python"] and origin["commit"] and origin["device"]
        assert all(b"unit" in (field.metadata or {}) for field in pq.read_schema(path)), path
    run = read_origin(project / RUN / "record.parquet")
    assert run["seed"] == 42 and len(run["order_hash"]) == 64
    assert run["data_origin"]["config_hash"] == run["spec"]["data_hash"]
    # GLA has no seconds: it does not run on a CPU.
    beyond = [p for p in files if p.stem == "lengths" or p.match("recall/full.parquet")]
    assert beyond and all(read_origin(path)["seconds"] > 0 for path in beyond)


def test_a_second_run_has_nothing_to_do(project: Path) -> None:
    assert planned_jobs(project, *TINY, "tensorboard=true") == {}
    done = snakemake(project, *TINY).stdout
    assert "Nothing to be done" in done and "steps (" not in done


def test_a_copied_and_touched_project_has_nothing_to_do(project: Path, tmp_path: Path) -> None:
    """Without Snakemake's memory it makes the report alone."""
    copy = tmp_path / "copy"
    shutil.copytree(project, copy, copy_function=shutil.copyfile)

    def touch() -> None:
        for path in sorted(
            (copy / "results").rglob("*"), key=lambda path: path.suffix != ".parquet"
        ):
            os.utime(path)

    touch()
    assert planned_jobs(copy, *TINY) == {}
    shutil.rmtree(copy / ".snakemake")
    touch()
    assert set(planned_jobs(copy, *TINY)) <= REPORT
    config = copy / "config.yaml"
    other = config.read_text("utf-8").replace("learning_rate: 1.2e-2", "learning_rate: 1.3e-2")
    config.write_text(other, "utf-8")
    refused = snakemake(copy, "--dry-run", *TINY, check=False)
    assert refused.returncode and "runs/10M/mha/42/record.parquet, made with another" in (
        refused.stdout
    )
    assert "delete results/tiny to make it anew" in refused.stdout


def test_a_corpus_too_small_is_refused_before_another_is_deleted(
    project: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "few.txt"
    corpus.write_text("Few words.", encoding="utf-8")
    kept = {path: path.read_bytes() for path in (project / "results/tiny/data").rglob("*.*")}
    done = snakemake(project, *TINY, f"corpus={corpus}", check=False)
    assert done.returncode and "vocabulary entries" in done.stdout
    assert kept and all(path.read_bytes() == content for path, content in kept.items())


def test_one_seed_again(project: Path) -> None:
    """Rerunning a seed reruns what depends on it and gives the same loss.

    Each job is a process of its own, as a user's are. A rendered report is not made twice.
    """
    again = (*TINY, "-R", f"{RUN}/record.parquet", "--")
    check = project / "results/tiny/verification.parquet"
    one_seed, report = {"train": 1, "diagnose": 1}, dict.fromkeys(REPORT, 1)
    assert planned_jobs(project, *again, "all") == {**one_seed, **report}
    kept = check.rename(project / "kept")
    assert planned_jobs(project, *TINY) == {"verify": 1, **report}
    kept.rename(check)

    before = nll(project)
    snakemake(project, *again, diagnosis(project).relative_to(project).as_posix(), own_jobs=True)
    assert nll(project) == before
    shutil.rmtree(project / "results/tiny/report")
    relation(project, "render", "--campaign", "tiny")
    assert (project / "results/tiny/report/index.html").exists()
    assert planned_jobs(project, *TINY) == {}


# By file: a text in it, what replaces it, and the rules that this makes stale.
EDITS = {
    "relation/train/schedule.py": (
        "min(rise, fall)",
        "0.99 * min(rise, fall)",
        {*TRAINED, *DIAGNOSED, "recall", "examine", *REPORT},
    ),
    "relation/flow/metrics.py": (".mean(-1)", ".sum(-1)", {*DIAGNOSED, *REPORT}),
    "report/render/site.py": ("results.report)", "results.folder)", {"report", "all"}),
    "report/templates/table.html.j2": ("<h1>", "<h1 >", {"report", "all"}),
    "report/templates/table.tex.j2": ("\n", "\n\n", {"document", "all"}),
    "report/paper/app-nll.csv": ("\n", "\n\n", {"cells", "report", "document", "all"}),
    "report/tolerances.toml": ("\n", "\n\n", {"cells", "report", "document", "all"}),
}
# Edits of tests/test_edits.py, which has that the hash of no other rule changes.
OF_ONE_RULE = {
    "recall": "a task's filler",
    "examine": "bands of use",
    "collect": "what is gathered",
    "measure": "a benchmark's seed",
    "verify": "a check's output",
    "verify_gradients": "what a gradient may miss",
}


@contextmanager
def edited(path: Path, text: str, new: str) -> Iterator[None]:
    """A file with the first occurrence of a text replaced, while the context lasts."""
    before = path.read_bytes()
    assert text.encode() in before, f"{path} has no {text!r}"
    try:
        path.write_bytes(before.replace(text.encode(), new.encode(), 1))
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("file", EDITS)
def test_an_edit_makes_stale_what_rests_on_it(project: Path, file: str) -> None:
    text, new, stale = EDITS[file]
    with edited(project / file, text, new):
        assert set(planned_jobs(project, *TINY)) == stale


def test_edits_of_a_rule_each_make_those_rules_stale(project: Path) -> None:
    with ExitStack() as edits:
        for file, text, new, _ in map(HASHED.get, OF_ONE_RULE.values()):
            edits.enter_context(edited(project / file, text, new))
        assert set(planned_jobs(project, *TINY)) == {*OF_ONE_RULE, *REPORT}


def test_a_touched_file_and_a_comment_make_nothing_stale(project: Path) -> None:
    """Nor does an edit that was taken back, as those before were."""
    with ExitStack() as edits:
        for path in (project / file for file in EDITS):
            if path.suffix == ".py":
                comment = "\n\n\n# A comment computes nothing.\ndef "
                edits.enter_context(edited(path, "\n\n\ndef ", comment))
            else:
                os.utime(path)
        assert planned_jobs(project, *TINY) == {}
    assert planned_jobs(project, *TINY) == {}


def test_an_unrelated_key_reruns_nothing_and_its_own_reruns_its_runs(project: Path) -> None:
    path = project / "config.yaml"
    before = path.read_text(encoding="utf-8")
    try:
        path.write_text(before.replace("title: The paper's formal matrix", "title: Another"))
        assert planned_jobs(project, *TINY) == {}
        path.write_text(before.replace("gradient_clip: 1.0", "gradient_clip: 2.0"))
        jobs = planned_jobs(project, *TINY)
        assert WHOLE.items() < jobs.items() and "prepare" not in jobs
    finally:
        path.write_text(before)


def test_what_is_shipped_is_rendered_by_rules_that_cannot_train(clone: Path) -> None:
    """Quick, idle when done, and stale where the code of a stage changed."""
    rules = snakemake(clone, *PUBLISHED, "--list-rules", "--quiet").stdout.split()
    assert {"cells", "figures", "report"} <= set(rules)
    made = {"measure", "examine", "recall", "verify", "verify_gradients", "prepare", "inventory"}
    assert not set(rules) & (made | TRAINED | DIAGNOSED)
    assert planned_jobs(clone, *PUBLISHED) == dict.fromkeys(REPORT, 1)
    snakemake(clone, *PUBLISHED)
    assert planned_jobs(clone, *PUBLISHED) == {}
    report = clone / "results/published/tiny/report"
    assert len(list((report / "tables").glob("*.html"))) == len(EVERY)
    cells = pq.read_table(report / "cells.parquet").to_pandas()
    assert set(cells[cells["status"] == "ok"]["freshness"]) == {"current"}
    assert not (clone / "results/tiny").exists()

    code = clone / "relation/train/schedule.py"
    before = code.read_bytes()
    code.write_bytes(before.replace(b"min(rise, fall)", b"0.99 * min(rise, fall)"))
    assert planned_jobs(clone, *PUBLISHED) == dict.fromkeys(REPORT - {"figures"}, 1)
    table = report / "cells.parquet"
    snakemake(clone, *PUBLISHED, "--", table.relative_to(clone).as_posix())
    cells = pq.read_table(table).to_pandas()
    losses = cells[(cells["table"] == "app-nll") & (cells["status"] == "ok")]
    assert set(losses["freshness"]) == {"older code, same golden losses"}
    code.write_bytes(before)


def test_with_nothing_shipped_one_line_says_how_to_ship(tmp_path: Path) -> None:
    rules = ("--snakefile", str(ROOT / "workflow/published.smk"), "--cores", "1")
    (said,) = snakemake(tmp_path, *rules).stdout.splitlines()
    assert "holds no campaign" in said and "`python -m relation publish --campaign NAME`" in said


def test_published_runs_count_as_done(clone: Path) -> None:
    """A clone that ships records has no job for them, whatever its own folder lacks."""
    assert set(planned_jobs(clone, *TINY)) == {"inventory", *REPORT}
    assert not (clone / "results/tiny/runs").exists()


def test_a_restriction_shows_the_rest_as_not_run(project: Path, clone: Path) -> None:
    """The jobs are the same where the runs lie in the campaign's folder and where they ship."""
    restricted = ("--config", "campaign=tiny", "scales=10M", "seeds=42", "variants=mha,full")
    for folder in (project, clone):
        assert set(planned_jobs(folder, *restricted)) == {"inventory", *REPORT}
    frame = "results/tiny/report/cells.parquet"
    snakemake(clone, *restricted, "--", frame)
    cells = pq.read_table(clone / frame).to_pandas()
    assert {"ok", "not run"} <= set(cells["status"])
    left_out = cells[(cells["table"] == "app-nll") & (cells["row"] == "30M/42")]
    assert set(left_out["status"]) == {"not run"}
    assert left_out["reason"].str.contains("scales=10M").all()


def test_a_published_run_that_is_not_whole_is_made_again_or_refused(clone: Path) -> None:
    folder = clone / "results/published/tiny"
    record, log = (folder / f"runs/10M/{name}.parquet" for name in ("full/42/record", "mha/42/log"))
    archive, elsewhere = folder / ARCHIVE, clone / ARCHIVE
    kept, whole = record.read_bytes(), log.read_bytes()
    record.unlink()
    archive.rename(elsewhere)
    jobs = planned_jobs(clone, *TINY)
    assert jobs["train"] == jobs["diagnose"] == jobs["prepare"] == 1
    elsewhere.rename(archive)
    assert planned_jobs(clone, *TINY).keys().isdisjoint({"train", "diagnose", "prepare"})
    assert record.read_bytes() == kept

    log.write_bytes(whole[:-9])
    done = snakemake(clone, "--dry-run", *TINY, check=False)
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert done.returncode and len(errors) == 1 and "SHA256SUMS" in errors[0]
    assert "Traceback" not in done.stdout
    log.write_bytes(whole)


AGAIN = (*TINY, "published=false")


def test_what_is_shipped_can_be_made_again_and_own_records_come_first(clone: Path) -> None:
    jobs = planned_jobs(clone, *AGAIN)
    assert {**WHOLE, "measure": MEASURED, "verify": 1}.items() < jobs.items()
    own = "results/tiny/verification.parquet"
    assert own not in snakemake(clone, "--detailed-summary", *TINY).stdout
    snakemake(clone, *AGAIN, "--", own)
    assert planned_jobs(clone, *AGAIN) == {k: n for k, n in jobs.items() if k != "verify"}
    assert own in snakemake(clone, "--detailed-summary", *TINY).stdout


TEXTS = ("--config", "campaign=tiny", "scales=10M", "seeds=42", "variants=mha,full")


@pytest.mark.slow
def test_local_texts_train_and_a_changed_corpus_makes_everything_stale(
    project: Path, tmp_path: Path
) -> None:
    """Texts of a user's own through the whole DAG; its report prints commands that run."""
    clone = copy_project(tmp_path / "clone")
    corpus = tmp_path / "my texts"
    corpus.mkdir()
    validation, *train = documents(60)
    (corpus / "validation.txt").write_text(validation, encoding="utf-8")
    (corpus / "train.txt").write_text("\n<|endoftext|>\n".join(train), encoding="utf-8")
    texts = (*TEXTS, f"corpus={corpus}")
    snakemake(clone, *texts)
    page = (clone / "results/tiny/report/index.html").read_text(encoding="utf-8")
    assert "variants=mha,full" in page and "my texts" in page
    assert planned_jobs(clone, *texts) == {}

    relation(clone, "publish", "--campaign", "tiny", "--corpus", str(corpus))
    shutil.rmtree(clone / "results/tiny")
    assert set(planned_jobs(clone, *texts)) == {"inventory", *REPORT}
    (corpus / "train.txt").write_text("\n<|endoftext|>\n".join(train[::-1]), encoding="utf-8")
    jobs = planned_jobs(clone, *texts)
    assert jobs["prepare"] == 1 and jobs["train"] == 2


def test_gpu_jobs_take_turns_under_a_bare_call(project: Path, tmp_path: Path) -> None:
    """Two jobs that claim the GPU never overlap, although there are cores for both."""
    (tmp_path / "Snakefile").write_text(
        f"""
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
PROJECT = Path({str(project)!r})
sys.path.insert(0, str(PROJECT))
configfile: str(PROJECT / "config.yaml")
include: str(PROJECT / "workflow/rules/common.smk")
rule all:
    default_target: True
    input: expand("{{job}}.done", job=["a", "b"])
rule claim:
    output: "{{job}}.done"
    resources: gpu=1
    shell: "mkdir busy && sleep 0.3 && rmdir busy && touch {{output}}"
""",
        encoding="utf-8",
    )
    snakemake(tmp_path, "--cores", "4", "--config", "campaign=tiny")


@pytest.mark.parametrize(
    "config, said",
    [
        ("campaign=nope", "unknown campaign 'nope'"),
        ("campaign=tiny scales=11M", "has no such scale"),
        ("campaign=tiny typo=1", "typo"),
        ("campaign=tiny published=no", "published: 'no'"),
        ("campaign=paper", "CUDA"),
        ("campaign=books", "corpus=books"),
        ("campaign=smoke corpus=missing.txt", "does not exist"),
        ("campaign=smoke corpus=missing.txt --dry-run", "does not exist"),
    ],
)
def test_bad_input_is_told_in_one_line_before_any_job(
    project: Path, config: str, said: str
) -> None:
    choices = ("--config", *config.split())
    done = snakemake(project, *choices, check=False, CUDA_VISIBLE_DEVICES="")
    assert done.returncode
    errors = [line for line in done.stdout.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and said in errors[0]
    assert "Traceback" not in done.stdout and "steps (" not in done.stdout
    assert not list((project / "results").glob("smoke/logs/*"))
    assert not list((project / "results").glob("paper/*"))


def test_a_configuration_that_is_not_yaml_is_told_with_its_line(project: Path) -> None:
    with edited(project / "config.yaml", "campaign:", "campaign: ]\nx:"):
        for rules in ((), ("--snakefile", "workflow/published.smk")):
            done = snakemake(project, "-n", *rules, check=False)
            errors = [line for line in done.stdout.splitlines() if "rror" in line]
            assert done.returncode and len(errors) == 1
            assert errors[0].startswith("error: ") and "config.yaml line " in errors[0]


def test_a_file_of_no_job_has_no_rule(project: Path) -> None:
    """A misspelt variant, scale, benchmark, mixer and reading; their like is made."""
    files = ("runs/10M/ful/42/record.parquet", "runs/11M/full/42/record.parquet")
    files += ("systems/fixd/10M.parquet", "recall/ful.parquet", "data/stories/data.parquet")
    files += ("readings/unscald/full/42/record.parquet", "runs/10M/full/7/record.parquet")
    for file in files:
        done = snakemake(project, "-n", *TINY, "--", f"results/tiny/{file}", check=False)
        assert done.returncode and f"No rule to produce results/tiny/{file}" in done.stdout
        assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_a_failed_job_leaves_the_others_and_says_why_in_one_line(project: Path) -> None:
    """A damaged checkpoint fails its diagnosis; nothing finished is lost, and mending it mends."""
    checkpoint = project / RUN / "model.safetensors"
    whole, kept = checkpoint.read_bytes(), (project / RUN / "record.parquet").read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    diagnosis(project).unlink()
    done = snakemake(project, *TINY, check=False)
    assert done.returncode
    assert any(
        line.startswith("error: ") and "no complete checkpoint" in line
        for line in done.stdout.splitlines()
    )
    assert "Traceback" not in done.stdout
    assert (project / RUN / "record.parquet").read_bytes() == kept
    last = done.stdout[done.stdout.index("\nMade: ") :]
    assert "Failed: diagnose 10M/full/42: " in last and "logs/diagnose/10M-full-42.log" in last
    assert "python -m relation render --config results/tiny/campaign.json" in last
    relation(project, "render", "--config", "results/tiny/campaign.json")
    missing = pq.read_table(project / "results/tiny/so-far/missing.parquet").to_pylist()
    assert {("flow", "failed"), ("curves", "failed")} <= {(m["kind"], m["status"]) for m in missing}
    assert all("no complete checkpoint" in m["reason"] for m in missing)
    checkpoint.write_bytes(whole)
    assert planned_jobs(project, *TINY) == {"diagnose": 1, **dict.fromkeys(REPORT, 1)}
    snakemake(project, *TINY)
    assert diagnosis(project).exists() and planned_jobs(project, *TINY) == {}


def test_the_started_configuration_is_what_jobs_read(project: Path) -> None:
    settings = json.loads((project / "results/tiny/campaign.json").read_text(encoding="utf-8"))
    assert settings["campaign"] == "tiny" and list(settings["campaigns"]) == ["tiny"]
