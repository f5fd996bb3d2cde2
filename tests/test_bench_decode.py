"""`bench decode`: the bytes of a state, a token's time, who overtakes whom, and the peer."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import campaign

from relation.bench.agreement import agreement
from relation.bench.decode import Cell, measured, random_state, run
from relation.bench.decode_table import notes, overtaken, sections
from relation.cli import main
from relation.nn import Decoder, DecodeState
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
        "model": model, "measure": "token", "context": context, "batch": batch,
        "seconds": ms and ms / 1e3,
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
    own = ["token", "prompt", "forward", "agreement"]
    assert [(r["model"], r["measure"], r["status"]) for r in rows] == [
        *((model, measure, "PASS") for model in ("mha", "hybrid") for measure in own),
        ("llama", "token", "UNAVAILABLE"),
    ]
    assert rows[0]["tokens_per_second"] == pytest.approx(2 / rows[0]["seconds"])
    assert rows[1]["tokens_per_second"] == pytest.approx(64 / rows[1]["seconds"])
    assert rows[1]["state_bytes"] and rows[2]["state_bytes"] is None
    assert path.with_suffix(".svg").read_text(encoding="utf-8").count("<svg") == 1


def test_one_measure_is_asked_for(elsewhere: None, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["bench", "decode", "--device", "cpu", "--peers", "full", "--only"]
    assert main([*chosen, "agreement"]) == 0
    assert "greedy differs" in capsys.readouterr().out
    assert main([*chosen, "speed"]) == 2
    assert "choose among token, prompt, agreement" in capsys.readouterr().err


def test_a_prompt_stands_beside_trainings_forward() -> None:
    prompts = [
        row("full", 8192, ms, measure=measure, samples=[ms / 1e3] * 6)
        for measure, ms in (("prompt", 4.0), ("forward", 3.0))
    ]
    (section,) = sections(prompts)
    assert section.rows == [
        ["full", "8,192", "1", "4.000", "250", "3.000", "0.75 [0.75, 0.75]", ""]
    ]


@pytest.mark.parametrize("variant", ["mha", "full", "linear", "hybrid"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_decoding_a_given_text_agrees_with_the_forward(variant: str, precision: str) -> None:
    found = agreement(ModelConfig.for_variant(variant, **TINY), precision, CPU)
    assert (found["status"], found["compared_tokens"]) == ("PASS", 16), found["reason"]
    assert 0 < found["logit_error"] < (1e-2 if precision == "bf16" else 1e-5)
    assert max(found["greedy_differs"], found["forward_differs"]) <= 16


def test_a_decoding_that_reads_another_place_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token turned to the place after its own is no rounding."""
    tables = Decoder._decoding_tables

    def shifted(self: Decoder, tokens: torch.Tensor, state: DecodeState) -> tuple:
        if tokens.shape[1] > 1:
            return tables(self, tokens, state)
        return self.rope_tables(1, tokens.device, state.length + 1)

    monkeypatch.setattr(Decoder, "_decoding_tables", shifted)
    config = ModelConfig.for_variant("full", **{**TINY, "init_std": 0.4})
    found = agreement(config, "bf16", CPU)
    assert found["status"] == "WRONG" and "RMS error is" in found["reason"]
    assert found["greedy_differs"] > 0


@pytest.mark.gpu
def test_the_kernels_and_the_peer_on_a_gpu(tmp_path: Path) -> None:
    (spec,) = (each for each in campaign("paper").systems if each.benchmark == "decode")
    few = [
        side | {"model": side["model"] | {"layout": side["model"]["layout"][:4]}}
        for side in spec.sides
    ]
    given = {"contexts": [512], "batches": [1, 8]}
    # A row of agreement passes where BF16's logits are within their bound.
    rows = run(replace(spec, sides=few), {}, "cuda", tmp_path / "decode.parquet", **given)
    for found in rows:
        if found["status"] == "UNAVAILABLE":
            assert found["model"] == "llama"
            assert re.search("not installed|few contexts", found["reason"])
        else:
            assert found["status"] == "PASS", found["reason"]
