"""The smoke campaign, the main job: where it has run, made current and held to its promises."""

from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, snakemake

from relation.store.layouts import LOG, PROBES, RUN
from relation.store.parquet import read_parquet
from report.values.tables import EVERY

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        not (ROOT / "results/smoke/report/index.html").exists(),
        reason="the smoke campaign has not been run here; `make` runs it",
    ),
]
SMOKE = ROOT / "results" / "smoke"


@pytest.fixture(scope="module")
def runs() -> dict[Path, tuple[pd.Series, pd.DataFrame]]:
    """Each run's record and log, by folder, of the smoke campaign in the project's own results."""
    snakemake(ROOT, "--cores", "all", "--config", "campaign=smoke")
    folders = sorted(path.parent for path in SMOKE.glob("runs/*/*/*/record.parquet"))
    return {
        folder: (
            read_parquet(folder / "record.parquet", RUN).to_pandas().iloc[0],
            read_parquet(folder / "log.parquet", LOG).to_pandas(),
        )
        for folder in folders
    }


def test_the_whole_matrix_is_there(runs) -> None:
    kinds = pd.Series([folder.parent.name for folder in runs]).value_counts()
    assert len(runs) == 36
    assert kinds["mha"] == kinds["full"] == 9 and kinds["hybrid"] == 3
    assert sum(kinds[name] for name in kinds.index if name not in ("mha", "full", "hybrid")) == 15
    for table in EVERY:
        for form in ("html", "tex"):
            assert (SMOKE / "report" / "tables" / f"{table.label}.{form}").exists()


def test_every_run_goes_through_warm_up_plateau_and_decay(runs) -> None:
    for folder, (_, log) in runs.items():
        rate = log["learning_rate"].to_numpy()
        assert len(log) >= 40, folder
        peak = rate.max()
        assert rate[0] < peak and rate[-1] < 0.2 * peak
        assert (rate == peak).sum() > len(log) / 2


def test_every_run_learns(runs) -> None:
    """At least 0.3 nat below the validation split's unigram entropy."""
    for folder, (record, _) in runs.items():
        assert record["final_nll"] <= record["unigram_entropy"] - 0.3, folder


def test_every_run_is_looked_at_before_it_and_meanwhile(runs) -> None:
    for folder in runs:
        probes = read_parquet(folder / "probes.parquet", PROBES).to_pandas()
        curve = probes["metric"] == "validation_nll"
        assert probes[~curve]["update"].nunique() == 11, folder
        assert curve.sum() == probes[curve]["update"].nunique() == 21, folder
        assert probes["value"].notna().all(), folder


def test_pairs_read_the_same_data_and_start_from_the_same_weights(runs) -> None:
    frame = pd.DataFrame([record for record, _ in runs.values()])
    for _, pair in frame[frame["variant"].isin(["mha", "full"])].groupby(["scale", "seed"]):
        assert pair["order_hash"].nunique() == 1 and pair["init_hash"].nunique() == 1
    assert frame.groupby("scale")["order_hash"].nunique().eq(3).all()
