"""`bench decode`: the bytes of a state, a token's time, who overtakes whom, and the peer."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from relation.bench.decode import Cell, measured, random_state, run
from relation.bench.decode_table import notes, overtaken, sections
from relation.cli import main
from relation.store.parquet import read_parquet
from relation.variants import ModelConfig

CPU = torch.device("cpu")
THIRTY = {"layers": 10, "d_model": 512, "heads": 8, "d_ff": 1024, "vocab_size": 4096}
TINY = {"layers": 4, "d_model": 32, "heads": 2, "d_ff": 20, "vocab_size": 53}


@pytest.mark.parametrize("variant", ["mha", "full", "linear", "hybrid"])
def test_a_cells_bytes_are_those_of_its_state(variant: str) -> None:
    cell = Cell(variant, ModelConfig.for_variant(variant, **TINY), 7, 3)
    assert random_state(cell, torch.bfloat16, CPU).nbytes == cell.state_bytes(torch.bfloat16)


def test_the_largest_cell_takes_344_gigabytes() -> None:
    cell = Cell("full", ModelConfig.for_variant("full", **THIRTY), 131072, 128)
    assert cell.state_bytes(torch.bfloat16) == 343_597_383_680


def row(model: str, context: int, ms: float | None, batch: int = 1, **changes) -> dict:
    """A row of the record; without a time it did not fit."""
    return {
        "model": model, "context": context, "batch": batch, "seconds": ms and ms / 1e3,
        "seconds_low": ms and ms / 2e3, "seconds_high": ms and ms / 500, "state_bytes": 344 * 10**9,
        "tokens_per_second": ms and 1e3 * batch / ms, "status": "PASS" if ms else "OOM",
        "reason": None if ms else "its state takes 344 GB, and 139 GB are free", **changes,
    }  # fmt: skip


def test_overtaking_is_told_from_where_it_lasts() -> None:
    times = {"mha": (0.2, 0.3, 0.4, None), "linear": (0.19, 0.31, 0.3, 0.3)}
    rows = [
        row(model, 512 * 4**i, ms) for model, each in times.items() for i, ms in enumerate(each)
    ]
    rows += [row("mha", 512, 1.0, 8), row("linear", 512, 2.0, 8)]
    assert list(overtaken(rows, "linear", "mha")) == [(1, 8192), (8, None)]
    told = notes([*rows, row("llama", 512, None, status="UNAVAILABLE", reason="not installed")])
    assert "batch 1: linear decodes faster than mha from T = 8,192 on" in told
    assert "llama: not installed" in told
    assert "mha T=32,768 batch 1: OOM, its state takes 344 GB, and 139 GB are free" in told
    lines = [line for section in sections(rows) for line in section.rows]
    assert ["mha", "512", "0.200 [0.100, 0.400]", "5,000", "344.0 GB", ""] in lines
    assert ["mha", "32,768", "-", "-", "344.0 GB", "OOM"] in lines


def test_a_cell_without_memory_is_a_row() -> None:
    def fail(cell: Cell) -> None:
        raise torch.OutOfMemoryError("out of memory\nand more")

    cell = Cell("full", ModelConfig.for_variant("full", **TINY), 7, 3)
    found = measured(cell, fail, "fp32", CPU)
    assert (found["status"], found["reason"]) == ("OOM", "out of memory")
    assert found["seconds"] is None and found["state_bytes"] == cell.state_bytes(torch.float32)


def test_the_command_on_a_cpu(elsewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--contexts", "3", "--batches", "2", "--peers", "mha,hybrid,llama"]
    assert main(["bench", "decode", "--device", "cpu", *chosen]) == 0
    out = capsys.readouterr().out
    path = Path("results/bench/decode-cpu-choice.parquet")
    assert out.endswith(f"{path}\n{path.with_suffix('.svg')}\n") and "Batch 2" in out
    rows = read_parquet(path).to_pylist()
    assert [(r["model"], r["status"]) for r in rows] == [
        ("mha", "PASS"), ("hybrid", "PASS"), ("llama", "UNAVAILABLE"),
    ]  # fmt: skip
    assert rows[0]["tokens_per_second"] == pytest.approx(2 / rows[0]["seconds"])
    assert path.with_suffix(".svg").read_text(encoding="utf-8").count("<svg") == 1


@pytest.mark.gpu
def test_the_kernels_and_the_peer_on_a_gpu(tmp_path: Path) -> None:
    models = {
        name: replace(ModelConfig.for_variant(name, **{**THIRTY, "layers": 4}), vocab_size=512)
        for name in ("mha", "full", "linear", "hybrid")
    }
    given = {"contexts": [512], "batches": [1, 8], "only": [*models, "llama"]}
    rows = run("paper", {}, models, "cuda", tmp_path / "decode.parquet", **given)
    for found in rows:
        if found["status"] == "UNAVAILABLE":
            assert found["model"] == "llama"
            assert re.search("not installed|few contexts", found["reason"])
        else:
            assert found["status"] == "PASS", found["reason"]
