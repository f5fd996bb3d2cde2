"""`python -m relation export`: a run as transformers loads it, and a card that rests on records."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

from relation.cli import main
from relation.data.tokenizer import load_tokenizer
from relation.store.layouts import RUN
from relation.store.parquet import read_origin, read_parquet

RUNS = ("10M/mha/42", "10M/full/42")
CAMPAIGN = ("--campaign", "tiny")


def test_without_transformers_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("transformers", "relation.hf"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", "10M/full/42", "nowhere", *CAMPAIGN]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a trained pair, and the folder `export` of its Full Relation run."""
    pytest.importorskip("transformers", reason="transformers is not installed; pip install '.[hf]'")
    project = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(project)
        (project / "config.yaml").symlink_to(ROOT / "config.yaml")
        assert main(["prepare", "sample-300", *CAMPAIGN]) == 0
        for run in RUNS:
            assert main(["train", run, *CAMPAIGN]) == 0
        assert main(["export", "10M/full/42", *CAMPAIGN, "export"]) == 0
    return project / "export"


def record_of(exported: Path, run: str = "10M/full/42") -> Path:
    return exported.parent / "results/tiny/runs" / run / "record.parquet"


LOADED = """
import sys, torch, relation.hf
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, tokens, context = sys.argv[1], sys.argv[2], int(sys.argv[3])
model = AutoModelForCausalLM.from_pretrained(folder).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
assert not {"snakemake", "pandas", "pyarrow", "datasets"} & sys.modules.keys()
ids = torch.frombuffer(bytearray(open(tokens, "rb").read()), dtype=torch.uint16).long()
total = 0.0
with torch.no_grad():
    for start in range(0, len(ids) - 1, context):
        window = ids[None, start : start + context + 1]
        logits = model(window[:, :-1]).logits[0].double()
        total += torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum").item()
print(total / (len(ids) - 1))
print(tokenizer("Once upon a time").input_ids)
"""


def test_it_gives_the_records_loss_where_the_pipeline_is_not(exported: Path) -> None:
    record = record_of(exported)
    (row,) = read_parquet(record, RUN).to_pylist()
    data = exported.parent / "results/tiny/data/sample-300"
    context = str(read_origin(record)["spec"]["context"])
    done = subprocess.run(
        [sys.executable, "-c", LOADED, exported, data / "validation.bin", context],
        # More threads would only wait for each other on so small a model.
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        cwd=exported,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loss, ids = done.stdout.splitlines()
    assert float(loss) == pytest.approx(row["final_nll"], abs=1e-4)
    assert ids == str(load_tokenizer(data / "tokenizer.json").encode("Once upon a time").ids)


def test_every_number_of_the_card_is_a_records(exported: Path) -> None:
    card = (exported / "README.md").read_text(encoding="utf-8")
    (row,) = read_parquet(record_of(exported), RUN).to_pylist()
    (mha,) = read_parquet(record_of(exported, "10M/mha/42"), RUN).to_pylist()
    origin = read_origin(record_of(exported))
    for value in (
        f"{row['final_nll']:.6f} nat/token",
        f"{row['parameters']:,}",
        f"{row['trained_tokens']:,} tokens",
        origin["config_hash"],
        origin["data_origin"]["title"],
        origin["device"],
    ):
        assert value in card
    difference = re.search(r"difference from MHA.*? \| (\S+) \| (.*?) \|", card)
    assert float(difference[1].replace("−", "-")) == pytest.approx(
        row["final_nll"] - mha["final_nll"], rel=1e-3
    )
    assert "one seed has no interval" in difference[2]
    claims = card.partition("claims\n")[2]
    assert "**1. Full Relation has a lower mean final validation NLL" in claims
    assert re.search(r"Not tested\.", claims)
    assert "None" not in card and "nan" not in card.split()


def test_what_cannot_be_exported_is_told_in_one_line(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(exported.parent)
    for target, folder, said in (
        ("10M/full/42", "export", "is there already"),
        ("10M/full/43", "other", "10M/full/43"),
        ("30M/hybrid/42", "other", "has no model.safetensors"),
    ):
        assert main(["export", target, folder, *CAMPAIGN]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line
    assert not Path("other").exists()


def test_it_generates(exported: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    given = tokenizer(["Once", "Once upon a time"], return_tensors="pt", padding=True)
    with torch.no_grad():
        ids = model.generate(**given, max_new_tokens=5, do_sample=False)
    assert ids.shape[0] == 2 and tokenizer.decode(ids[1]).startswith("Once upon a time")


TASK = """
task: own-text
dataset_path: json
dataset_kwargs: {data_files: {test: TEXTS}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte}]
"""


def test_the_evaluation_harness_scores_own_texts(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm_eval's bits per byte are those of the logits, a text after end-of-text."""
    lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed; pip install lm_eval")
    transformers = pytest.importorskip("transformers")
    texts = ["Once upon a time", "a house by the sea"]
    lines = [json.dumps({"text": text}) for text in texts]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = TASK.replace("TEXTS", str(tmp_path / "texts.jsonl"))
    (tmp_path / "own-text.yaml").write_text(task, encoding="utf-8")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(exported), "device": "cpu", "dtype": "float32"},
        tasks=["own-text"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path)),
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    nats = 0.0
    for text in texts:
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(text).input_ids]])
        nats += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    bits = nats / math.log(2) / sum(len(text.encode()) for text in texts)
    assert found["results"]["own-text"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-4)
