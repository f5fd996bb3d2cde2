"""`python -m relation generate`: a checkpoint continues a prompt, or one line says why not."""

import io
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from test_generation import greedy

from relation.cli import main
from relation.data.tokenizer import load_tokenizer, train_tokenizer
from relation.train.checkpoint import load_model

Output = pytest.CaptureFixture[str]
RUNS = ("10M/full/42", "30M/hybrid/42")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where two runs of the tiny campaign are trained."""
    folder = tmp_path_factory.mktemp("project")
    before = Path.cwd()
    os.chdir(folder)
    try:
        (folder / "config.yaml").symlink_to(ROOT / "config.yaml")
        assert main(["prepare", "sample-300", "--campaign", "tiny"]) == 0
        for run in RUNS:
            assert main(["train", run, "--campaign", "tiny"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def here(results: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(results)
    return results


def generated(capsys: Output, *arguments: str) -> tuple[str, str]:
    """Standard output and error of a call that succeeds, on the CPU."""
    capsys.readouterr()
    assert main(["generate", *arguments, "--device", "cpu"]) == 0
    return tuple(capsys.readouterr())


PROMPT = "Once upon a time"
TINY_RUN = ("10M/full/42", "--campaign", "tiny")


@pytest.mark.parametrize("run", RUNS)
def test_the_command_continues_a_prompt(here: Path, capsys: Output, run: str) -> None:
    arguments = (run, "--campaign", "tiny", "--prompt", PROMPT, "--tokens", "20")
    out, err = generated(capsys, *arguments, "--temperature", "0")
    tokenizer = load_tokenizer(here / "results/tiny/data/sample-300/tokenizer.json")
    model = load_model(here / f"results/tiny/runs/{run}/model.safetensors", torch.device("cpu"))
    prompt = tokenizer.encode(PROMPT).ids
    expected = greedy(model, prompt, 20)
    assert out == PROMPT + tokenizer.decode(expected, skip_special_tokens=False) + "\n"

    last = err.splitlines()[-1]
    tokens, rate, read, bytes_, length = re.fullmatch(
        r"(\d+) tokens, ([\d,]+) tok/s with the prompt's (\d+) read; "
        r"decode state ([\d,]+) bytes after (\d+) tokens",
        last,
    ).groups()
    assert (int(tokens), int(read), int(length)) == (20, len(prompt), len(prompt) + 19)
    assert int(rate.replace(",", "")) > 0
    config = model.config
    history = 2 * 4 * config.d_model * int(length)
    linear = 4 * config.d_model * config.head_dim
    expected_bytes = sum(linear if letter == "L" else history for letter in config.layout)
    assert int(bytes_.replace(",", "")) == expected_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS)
def test_a_gpu_continues_as_a_cpu_does(here: Path, capsys: Output, run: str) -> None:
    arguments = (run, "--campaign", "tiny", "--prompt", PROMPT, "--tokens", "20")
    expected, _ = generated(capsys, *arguments, "--temperature", "0")
    assert main(["generate", *arguments, "--temperature", "0", "--device", "cuda"]) == 0
    assert capsys.readouterr().out == expected


def test_going_beyond_the_training_context_is_told(here: Path, capsys: Output) -> None:
    prompt = len(
        load_tokenizer(here / "results/tiny/data/sample-300/tokenizer.json").encode("Once").ids
    )
    for tokens, warned in ((16 - prompt, False), (17 - prompt, True)):
        call = (*TINY_RUN, "--prompt", "Once", "--tokens", str(tokens))
        lines = generated(capsys, *call)[1].splitlines()
        told = [line.startswith("warning: up to 17 tokens") for line in lines[:-1]]
        assert told == [True] * warned


def test_a_seed_fixes_the_text(here: Path, capsys: Output) -> None:
    call = (*TINY_RUN, "--prompt", PROMPT, "--tokens", "30", "--top-k", "50", "--top-p", "0.95")
    texts = [generated(capsys, *call, "--seed", seed)[0] for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("ending", ["", "\n"])
def test_a_prompt_from_a_file_or_standard_input(
    here, capsys, monkeypatch, tmp_path, ending
) -> None:
    call = (*TINY_RUN, "--tokens", "5")
    expected = generated(capsys, *call, "--prompt", "Zoë sat.\n")[0]
    file = tmp_path / "prompt.txt"
    file.write_text("Zoë sat.\n\n", encoding="utf-8")
    assert generated(capsys, *call, "--prompt-file", str(file))[0] == expected

    data = io.BytesIO(("Zoë sat." + ending).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data, encoding="ascii"))
    expected = generated(capsys, *call, "--prompt", "Zoë sat.")[0]
    assert generated(capsys, *call, "--prompt-file", "-")[0] == expected


def test_a_huge_count_takes_no_memory_ahead(here: Path, capsys: Output) -> None:
    # Nearly even odds of all 300 tokens: the end of the text is drawn before long.
    call = (*TINY_RUN, "--prompt", "Once", "--temperature", "1e9")
    err = generated(capsys, *call, "--tokens", "1000000000000")[1].splitlines()
    assert err[0].startswith("warning: up to 1,000,000,000,0")
    assert "ended by the model" in err[-1]


def test_characters_that_the_terminal_lacks_come_out_as_question_marks(
    here, capsys, monkeypatch
) -> None:
    call = (*TINY_RUN, "--prompt", "Zoë sat.", "--tokens", "30")
    expected = generated(capsys, *call)[0]
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert main(["generate", *call, "--device", "cpu"]) == 0
    assert written.getvalue() == expected.encode("ascii", errors="replace")
    assert written.getvalue().startswith(b"Zo? sat.")


def test_a_checkpoint_with_its_tokenizer_stands_for_a_run(here: Path, capsys: Output) -> None:
    call = ("--prompt", PROMPT, "--tokens", "30")
    out, err = generated(
        capsys,
        *call,
        *("--checkpoint", "results/tiny/runs/10M/full/42/model.safetensors"),
        *("--tokenizer", "results/tiny/data/sample-300/tokenizer.json"),
    )
    assert out == generated(capsys, *TINY_RUN, *call)[0]
    assert len(err.splitlines()) == 1


TOKENIZER = "results/tiny/data/sample-300/tokenizer.json"
CHECKPOINT = "--checkpoint results/tiny/runs/10M/full/42/model.safetensors"
BAD_CALLS = {
    "no run named": ("--prompt a", "SCALE/VARIANT/SEED"),
    "no such run": ("10M/full/7 --campaign tiny --prompt a", "no run 10M/full/7"),
    "not trained yet": (
        "10M/mha/42 --campaign tiny --prompt a",
        "`snakemake --cores all --config campaign=tiny -- "
        "results/tiny/runs/10M/mha/42/model.safetensors`",
    ),
    "no prompt": ("10M/full/42 --campaign tiny", "--prompt"),
    "two prompts": ("10M/full/42 --campaign tiny --prompt a --prompt-file b", "--prompt"),
    "an empty prompt": ("10M/full/42 --campaign tiny --prompt-file empty.txt", "empty"),
    "no such file": ("10M/full/42 --campaign tiny --prompt-file absent.txt", "absent.txt"),
    "not UTF-8": ("10M/full/42 --campaign tiny --prompt-file latin.txt", "UTF-8"),
    "a prompt of no characters": ("10M/full/42 --campaign tiny --prompt \udce9", "UTF-8"),
    "no tokens": ("10M/full/42 --campaign tiny --prompt a --tokens 0", "0 tokens"),
    "words for tokens": ("10M/full/42 --campaign tiny --prompt a --tokens many", "many"),
    "a negative temperature": (
        "10M/full/42 --campaign tiny --prompt a --temperature -1",
        "temperature",
    ),
    "no top k": ("10M/full/42 --campaign tiny --prompt a --top-k 0", "top_k"),
    "no top p": ("10M/full/42 --campaign tiny --prompt a --top-p 0", "top_p"),
    "a top p beyond 1": ("10M/full/42 --campaign tiny --prompt a --top-p 1.5", "top_p"),
    "an unknown device": ("10M/full/42 --campaign tiny --prompt a --device abacus", "abacus"),
    "a run and a checkpoint": (f"10M/full/42 {CHECKPOINT} --prompt a", "--checkpoint"),
    "a checkpoint alone": (f"{CHECKPOINT} --prompt a", "--tokenizer"),
    "a tokenizer alone": ("10M/full/42 --tokenizer a.json --prompt a", "--checkpoint"),
    "no such checkpoint": (
        f"--checkpoint absent --tokenizer {TOKENIZER} --prompt a",
        "--checkpoint absent is missing; name a",
    ),
    "a checkpoint that is a folder": (
        f"--checkpoint results --tokenizer {TOKENIZER} --prompt a",
        "results cannot be read",
    ),
    "a checkpoint with a campaign": (
        f"{CHECKPOINT} --tokenizer {TOKENIZER} --prompt a --campaign tiny",
        "leave out --campaign",
    ),
    "a checkpoint with a configuration": (
        f"{CHECKPOINT} --tokenizer {TOKENIZER} --prompt a --config other.yaml",
        "leave out --config",
    ),
    "another tokenizer": (f"{CHECKPOINT} --tokenizer other.json --prompt a", "has 300 tokens"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_is_one_line(here: Path, capsys: Output, case: str) -> None:
    Path("empty.txt").write_bytes(b"\n")
    Path("latin.txt").write_bytes("é".encode("latin-1"))
    train_tokenizer(["the cat sat on the mat"], 258, "test").save("other.json")
    call, told = BAD_CALLS[case]
    assert main(["generate", *call.split()]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ") and output.err.count("\n") == 1
    assert told in output.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told(here: Path, capsys: Output) -> None:
    assert main(["generate", *TINY_RUN, "--prompt", "a", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == (
        "error: --device cuda: PyTorch sees no CUDA GPU here; give --device cpu\n"
    )


@pytest.mark.parametrize("command", ["generate --prompt a", "diagnose", "examine"])
def test_a_checkpoint_of_another_configuration_is_refused(
    here: Path, capsys: Output, command: str
) -> None:
    config = (ROOT / "config.yaml").read_text()
    other = re.sub(r"(?m)^( +learning_rate: ).*$", r"\g<1>2.0e-4", config)
    assert other != config
    Path("other.yaml").write_text(other)
    name, *options = command.split()
    before = {path for path in here.rglob("*.parquet")}
    assert main([name, *TINY_RUN, "--config", "other.yaml", *options]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: 10M/full/42 was trained as another configuration; make it with")
    assert "campaign=tiny -- results/tiny/runs/10M/full/42/model.safetensors`" in told
    assert {path for path in here.rglob("*.parquet")} == before


@pytest.mark.parametrize("job", ["prepare sample-300", "train 10M/full/42"])
def test_a_job_that_is_done_is_made_again_only_if_asked_to(
    here: Path, capsys: Output, job: str
) -> None:
    name, target = job.split()
    record = (
        "data/sample-300/data.parquet" if name == "prepare" else f"runs/{target}/record.parquet"
    )
    record = Path("results/tiny", record)
    before = record.read_bytes()
    call = (name, target, "--campaign", "tiny")
    assert main([*call]) == 0
    assert capsys.readouterr().out == f"{target} is done: {record}; --again makes it again\n"
    assert record.read_bytes() == before
    assert main([*call, "--again"]) == 0
    assert capsys.readouterr().out.endswith(f"\n{record}\n")
    assert record.read_bytes() != before  # as its origin says, made later
