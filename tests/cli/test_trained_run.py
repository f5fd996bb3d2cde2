"""What the command line makes from a trained run: a text, and a folder for transformers."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import link_project
from models import greedy

from relation import records
from relation.cli import main
from relation.data.tokenizer import load_tokenizer
from relation.train.checkpoint import load_model

RUN, TINY = "10M-mini/base/full/42", "campaign=tiny"
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results that hold the tiny campaign's corpus and one trained run."""
    folder = tmp_path_factory.mktemp("project")
    link_project(folder)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        assert main(["prepare", "sample-300", TINY]) == main(["train", RUN, TINY]) == 0
    return folder / "results" / "tiny"


@pytest.fixture(autouse=True)
def here(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def generated(capsys: pytest.CaptureFixture, *options: str) -> str:
    capsys.readouterr()
    assert main(["generate", RUN, TINY, "--prompt", PROMPT, "--tokens", "20", *options]) == 0
    return capsys.readouterr().out


def test_a_greedy_text_is_the_models(trained: Path, capsys: pytest.CaptureFixture) -> None:
    tokenizer = load_tokenizer(trained / "data/sample-300/tokenizer.json")
    model = load_model(trained / f"runs/{RUN}/model.safetensors", torch.device("cpu"))
    expected = greedy(model, tokenizer.encode(PROMPT).ids, 20)
    text = PROMPT + tokenizer.decode(expected, skip_special_tokens=False) + "\n"
    assert generated(capsys, "--temperature", "0") == text


def test_a_seed_fixes_the_text(capsys: pytest.CaptureFixture) -> None:
    options = ("--top-k", "50", "--top-p", "0.95")
    texts = [generated(capsys, *options, "--seed", seed) for seed in ("1", "1", "2")]
    assert texts[0] == texts[1] != texts[2]


def test_a_corpus_of_other_texts_is_refused(tmp_path: Path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A sentence of some words.\n" * 20_000)
    assert main(["diagnose", RUN, TINY, f"corpus={text}"]) == 2
    assert "sample-300 holds other texts or settings than" in capsys.readouterr().err


def test_a_missing_checkpoint_comes_with_the_command_that_makes_it(capsys) -> None:
    run = RUN.replace("42", "43")
    assert main(["generate", run, TINY, "seeds=42,43", "--prompt", PROMPT]) == 2
    target = f"results/tiny/runs/{run}/model.safetensors"
    choices = "campaign=tiny seeds=42,43 published=false"
    line = f"snakemake --cores all --config {choices} -- {target}"
    assert line in capsys.readouterr().err


def test_an_exported_run_is_the_trained_one(trained: Path, tmp_path: Path, capsys) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "exported"
    assert main(["export", RUN, TINY, "--folder", str(folder)]) == 0
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    row = records.read(trained / f"runs/{RUN}/run.parquet", "runs").iloc[0]
    own = load_tokenizer(trained / "data/sample-300/tokenizer.json")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    assert ids[0].tolist() == own.encode(PROMPT).ids
    # Generation in batches pads at the left, and ends at end-of-text.
    assert (tokenizer.padding_side, tokenizer.model_max_length) == ("left", row["context"])
    end = own.token_to_id("<|endoftext|>")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == end
    expected = load_model(trained / f"runs/{RUN}/model.safetensors", torch.device("cpu"))
    torch.testing.assert_close(model(ids).logits, expected(ids))
    assert f"{row['final_nll']:.4f} nat/token" in (folder / "README.md").read_text()
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 300
    for run, message in ((RUN, "exists already"), (RUN[:-1] + "3", "make it with `snakemake")):
        assert main(["export", run, TINY, "--folder", str(folder)]) == 2
        assert message in capsys.readouterr().err
    path = trained / f"runs/{RUN}/run.parquet"
    kept = path.read_bytes()
    pd.read_parquet(path).assign(final_nll=float("nan")).to_parquet(path)
    assert main(["export", RUN, TINY, "--folder", str(tmp_path / "diverged")]) == 2
    path.write_bytes(kept)
    assert "there is no model to export" in capsys.readouterr().err
