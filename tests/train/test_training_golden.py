"""Loss curves that a refactor must reproduce, from the token file to the losses of a run.

    PYTHONPATH=.:tests python tests/train/test_training_golden.py

adds the curves of new variants to tests/golden/losses.csv, on one CPU thread in FP32. With --all it
writes all curves again; use this only if the computation is meant to change.
"""

import sys
import tempfile
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import ROOT
from training import UPDATE, small_model, small_run, train_in, write_corpus

from relation import records
from relation.variants import OPERATORS, VARIANTS

GOLDEN = ROOT / "tests" / "golden" / "losses.csv"
READINGS = ("loss", "gradient_norm")
REFERENCE = dict.fromkeys(OPERATORS.values(), "reference") | {"linear": "recurrent"}
FAST = {"mha": "flash", "full": "tiled", "calibrated": "tiled", "linear": "chunked"}


def curve(variant: str, backends: dict[str, str], data: Path, folder: Path) -> pd.DataFrame:
    """Seven updates and a partial one, so warm-up, plateau and decay all occur."""
    model = small_model(variant, init_std=0.1, scale_residual_init=True)
    changes = {"budget_tokens": 7 * UPDATE + 40, "learning_rate": 8e-3, "adam_eps": 1e-8}
    run = small_run(variant, model=model, backends=backends, **changes)
    losses = records.read(train_in(folder, data, run) / "losses.parquet", "losses")
    return losses[["variant", "update", *READINGS]]


@cache
def golden() -> dict[str, pd.DataFrame]:
    """The pinned curve of each variant."""
    return dict(iter(pd.read_csv(GOLDEN).groupby("variant")))


def regenerate(kept: dict[str, pd.DataFrame]) -> None:
    """Write the kept curves, and new ones from this code with the operators' definitions."""
    torch.set_num_threads(1)
    curves = []
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            if variant not in kept:
                data = write_corpus(Path(folder) / "data")
                kept[variant] = curve(variant, REFERENCE, data, Path(folder))
        curves.append(kept[variant])
    pd.concat(curves).to_csv(GOLDEN, index=False, float_format="%.9g", lineterminator="\n")


@pytest.mark.parametrize(
    ("variant", "backends"),
    [*((v, REFERENCE) for v in VARIANTS), *((v, FAST) for v in ("mha", "full", "hybrid"))],
)
def test_a_run_gives_the_golden_losses(data, tmp_path, variant, backends) -> None:
    """Float64 or another backend changes a loss by at most 3e-7 of it, and a norm by 2e-6, which
    is FP32's rounding; other instruction sets round as much. With QK-norm in Full Relation a norm
    changes by 1.3e-5, because some gradients are so small that AdamW's epsilon of 1e-8 lets their
    rounding through to the update."""
    assert variant in golden(), "add its golden losses: docs/extending.md"
    actual, expected = curve(variant, backends, data, tmp_path), golden()[variant]
    rel = 5e-5 if variant == "full-qknorm" else 1e-5
    assert actual["update"].tolist() == expected["update"].tolist()
    for name in READINGS:
        assert actual[name].tolist() == pytest.approx(expected[name].tolist(), rel=rel)


if __name__ == "__main__":
    regenerate({} if "--all" in sys.argv else golden())
