"""The commands: what they print, and one line for bad input."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, link_project

from relation import plan, records
from relation.cli import main

RUN = "10M-mini/base/full/42"
JOBS = ["train", RUN], ["diagnose", RUN], ["bench", "matched/10M-mini"], ["check"], ["collect"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder without results."""
    link_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture, *arguments: str, status: int = 0) -> str:
    """The output of a command; for a refused command, the line on standard error."""
    assert main(list(arguments)) == status
    captured = capsys.readouterr()
    if status:
        assert captured.err.startswith("error: ") and captured.err.count("\n") == 1, captured.err
        return captured.err
    return captured.out


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["trian"], "invalid choice: 'trian'"),
        (["plan", "--conf", "x"], "unrecognized arguments: --conf"),
        (["plan", "campaign=smok"], "did you mean 'smoke'?"),
        (["plan", "seeds="], "'seeds=' is not a choice; give KEY=VALUE"),
        (["plan", "--config", "nowhere.yaml"], "no configuration file nowhere.yaml"),
        (["diagnose", "seeds=42", RUN], f"'{RUN}' is not a choice; give KEY=VALUE"),
        (["prepare"], "required: CORPUS-VOCABULARY; see"),
        (["train", "10M/full/42"], "has no run '10M/full/42' (SCALE/VARIATION/"),
        (["prepare", "sample-5"], "has no data 'sample-5'; did you mean 'sample-512'?"),
        (["generate", RUN, "--prompt", "a", "--tokens", "many"], "invalid int value: 'many'"),
        (["report", "--published", "seeds=42"], "--published takes no choices"),
        (["publish", "seeds=42"], "publish takes only campaign="),
        (["recall", "gla"], "campaign smoke has no recall of 'gla'"),
        (["diagnose", RUN], "results/smoke/data/sample-512/data.parquet is missing; run"),
        *(([*job, "--hash", "0123456789abcdef"], "planned was 0123456789abcdef") for job in JOBS),
    ],
)
def test_bad_input_is_refused_in_a_line(capsys, arguments: list[str], line: str) -> None:
    assert line in printed(capsys, *arguments, status=2)


@pytest.mark.parametrize("arguments", [["plan"], ["report", "--published"], ["publish"]])
def test_outside_the_project_a_command_says_where_to_run(
    capsys, tmp_path_factory, monkeypatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("outside"))
    assert "; run in the project's folder" in printed(capsys, *arguments, status=2)


@pytest.mark.parametrize(
    "error, status, line",
    [
        (KeyboardInterrupt(), 130, "\ninterrupted: run the same command again to continue\n"),
        (ModuleNotFoundError(name="tokenizers"), 2, "error: tokenizers is not installed; "),
        (OSError(errno.ENOSPC, "No space left", "x.bin"), 2, "error: x.bin: No space left; fix "),
        (MemoryError(), 2, "error: out of memory; lower `micro`"),
        (RuntimeError("CUDA out of memory. It\n..."), 2, "error: CUDA out of memory. It; lower "),
    ],
)
def test_what_ends_a_command_is_one_line(capsys, monkeypatch, error, status, line) -> None:
    def fail(*_) -> None:
        raise error

    monkeypatch.setattr("relation.cli.load", fail)
    assert main(["plan"]) == status
    error = capsys.readouterr().err
    assert error.startswith(line) and "\n" not in error.strip()


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    command, pipe = [sys.executable, "-m", "relation", "config"], subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 141


def test_a_damaged_record_is_named(capsys, elsewhere: Path) -> None:
    record = elsewhere / f"results/smoke/runs/{RUN}/run.parquet"
    record.parent.mkdir(parents=True)
    record.write_bytes(b"PAR1 and no more")
    for command in ("status", "plan"):
        assert f"{RUN}/run.parquet" in printed(capsys, command, status=2)


def test_plan_prices_what_is_to_be_made(capsys) -> None:
    choices = ("scales=10M-mini", "seeds=42", "variants=mha,full", "variations=base")
    text = printed(capsys, "plan", *choices)
    assert "2 train, 2 diagnose" in text and "1 prepare" in text
    assert "s of one core" in text and "MiB of disk" in text
    assert "text: Public-domain books, a sample, relation/data/sample\n" in text


def test_plan_says_which_text_will_not_do(capsys, elsewhere: Path) -> None:
    (elsewhere / "text.txt").write_text("Too short.\n")
    assert main(["plan", "campaign=tiny", "corpus=text.txt"]) == 2
    text, line = capsys.readouterr()
    assert "text: text.txt, text.txt" in text and "MiB of disk" in text
    assert line.startswith("error: text.txt (sam") and line.count("\n") == 1


@pytest.mark.parametrize("line", ["error: the disk is full", "torch.OutOfMemoryError: full"])
def test_status_names_what_needs_attention_and_counts_the_rest(
    capsys, elsewhere: Path, line: str
) -> None:
    campaign = plan.load({"campaign": "tiny"})
    log = elsewhere / f"results/tiny/logs/train/{RUN}.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"{campaign.run(RUN).hash}\n10M-mini: 64/600\r10M-mini: 128/600 tokens (21%)\n")
    other = campaign.run(RUN.replace("42", "43"))
    log.with_name("43.log").write_text(f"{other.hash}\nTraceback\n{line}\n")
    status = ("status", "campaign=tiny")
    with records.held(elsewhere / f"results/tiny/work/{campaign.run(RUN).hash}.lock", RUN):
        failed, running, *counted = printed(capsys, *status).splitlines()
    assert failed.split()[:2] == ["failed", other.name] and line in failed
    assert running.split()[:2] == ["running", RUN] and "128/600" in running
    counts = "2 waiting, 1 running, 1 failed"
    assert counted == [f"10M-mini/base: {counts}", f"{campaign.title}, all runs: {counts}"]
    # The lock is released, as if the process had ended.
    stopped = printed(capsys, *status).splitlines()[1]
    assert stopped.split()[:2] == ["stopped", RUN] and "128/600" in stopped
    # With another text the runs are others, so these logs do not count for them.
    text = elsewhere / "text.txt"
    text.write_text("A sentence of some words.\n" * 20_000)
    arguments = ("campaign=tiny", "variants=full", f"corpus={text}")
    lines = printed(capsys, "status", *arguments).splitlines()
    assert lines[-1] == f"{campaign.title}, all runs: 2 waiting"


@pytest.mark.parametrize("campaign", [path.stem for path in (ROOT / "config").glob("*.yaml")])
def test_status_of_any_campaign_fits_a_screen(capsys, campaign: str) -> None:
    lines = printed(capsys, "status", f"campaign={campaign}", "published=false").splitlines()
    assert len(lines) <= 40
