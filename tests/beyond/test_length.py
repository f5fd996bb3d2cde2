"""Texts longer than the training context, on hand-built models whose answers are known."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from models import TINY, stirred
from training import small_model, small_run, write_corpus

from relation import records
from relation.beyond import length as beyond
from relation.config import Length
from relation.nn import Decoder
from relation.train.checkpoint import save_model

END = 3


def test_windows_lie_within_a_document() -> None:
    """First windows of all documents come first. Ids count up, so a mixed window would show."""
    tokens = np.concatenate([[END, *range(10, 22)], [END, *range(30, 34)], [END, *range(50, 59)]])
    windows = beyond.document_windows(tokens, END, 4, 1, count=10)
    assert windows[:, 0].tolist() == [END, END, END, 13, 53, 17]
    assert all((np.diff(row[1:]) == 1).all() for row in windows)
    assert len(beyond.document_windows(tokens, END, 4, 1, count=2)) == 2
    actual = beyond.document_windows(tokens, END, 3, 8, count=9)
    assert actual.shape == (1, 13), "no document holds 24 tokens, one holds 12"
    assert len(beyond.document_windows(tokens, END, 50, 8, count=9)) == 0


def lengths(model: Decoder) -> dict[str, np.ndarray]:
    """NLL by reading and quarter of a context, for three windows of four contexts of 8 tokens."""
    windows = torch.randint(TINY["vocab_size"], (3, 33), generator=torch.Generator().manual_seed(5))
    nll_of: dict[str, list[float]] = {}
    for row in beyond.length_rows(model, windows, 8):
        assert row["count"] == 3 * 2 and row["first"] == 2 * len(nll_of.get(row["reading"], []))
        nll_of.setdefault(row["reading"], []).append(row["nll"])
    return {reading: np.array(nll) for reading, nll in nll_of.items()}


def test_a_model_that_ignores_its_context_is_the_same_at_every_length() -> None:
    model = stirred("full").float()
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.wo.weight.zero_()
    nll_of = lengths(model)
    assert nll_of.keys() == {"whole", "apart"}
    for nll in nll_of.values():
        assert nll == pytest.approx(nll_of["whole"], rel=1e-5)
    with torch.no_grad():
        model.embedding.weight.zero_()
    for nll in lengths(model).values():
        assert len(nll) == 16 and nll == pytest.approx(math.log(TINY["vocab_size"]))


def test_windows_as_long_as_trained_stand_beside_long_ones() -> None:
    model = stirred("full").float()
    nll_of = lengths(model)
    assert nll_of["apart"][:4] == pytest.approx(nll_of["whole"][:4], rel=1e-5)
    assert np.abs(nll_of["apart"] - nll_of["whole"])[4:].max() > 1e-3


@pytest.mark.parametrize("documents, length, rows", [(3, 200, 2 * 4 * 4), (40, 12, 0)])
def test_a_checkpoint_is_measured_into_a_record(tmp_path: Path, documents, length, rows) -> None:
    """Documents of six contexts of 32 (windows are halved) and of less than one (no rows)."""
    ids = np.random.default_rng(0).integers(1, 61, (documents, length))
    ids[:, 0] = 0  # end-of-text
    write_corpus(tmp_path, validation=ids)
    run = small_run("hybrid", context=32)
    save_model(Decoder(small_model("hybrid")), tmp_path / "model.safetensors", {})
    section = Length(variants=["hybrid"], windows=2, contexts=8)
    beyond.measure(run, tmp_path, tmp_path / "model.safetensors", tmp_path / "out", section)
    frame = records.read(tmp_path / "out" / "lengths.parquet", "lengths")
    assert len(frame) == rows
    if rows:
        assert set(frame["hash"]) == {section.hash(run)} and frame["nll"].between(0, 99).all()
        assert set(frame["reading"]) == {"whole", "apart"}
