"""The page Study: the protocol's choice of a rate, the arms, and the shipped readings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from relation.errors import InputError
from report import study

PUBLISHED = Path("results/published")


def runs_at(rates, seeds, nll):
    """Runs of one arm; nll(rate, seed) -> final NLL."""
    rows = [(rate, seed, nll(rate, seed)) for rate in rates for seed in seeds]
    return pd.DataFrame(rows, columns=["learning_rate", "seed", "final_nll"])


RATES = [1e-3 * 2 ** (k / 2) for k in range(-2, 3)]


def test_a_quadratic_gives_its_minimum():
    runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1.2e-3) ** 2)
    assert study.best_rate(runs) == (pytest.approx(1.2e-3), "", pytest.approx(3))


def test_the_minimum_stays_between_the_neighbours():
    # Flat but for a steep fall at the middle rate's right: the parabola would go beyond.
    values = dict(zip(RATES, (3.5, 3.3, 3.2, 3.19, 3.6), strict=True))
    rate, why, _ = study.best_rate(runs_at(RATES, (1, 2, 3, 4), lambda rate, _: values[rate]))
    assert why == "" and RATES[2] <= rate <= RATES[4]


def test_an_edge_and_missing_seeds_leave_the_rate_open():
    falling = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 - rate)
    assert study.best_rate(falling)[0] is None and "edge" in study.best_rate(falling)[1]
    few = runs_at(RATES, (1, 2), lambda rate, _: 3 + np.log(rate / 1.1e-3) ** 2)
    assert "two more seeds at 0.000707, 0.001, 0.00141" in study.best_rate(few)[1]


def test_a_divergence_ranks_behind_all_others():
    for lost in (np.nan, 3.6):  # stopped, and far above the median at its rate
        runs = runs_at(RATES[:4], (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1.1e-3) ** 2)
        runs.loc[runs["seed"].eq(1) & runs["learning_rate"].eq(RATES[2]), "final_nll"] = lost
        assert study.best_rate(runs)[1] == "the best rate, 0.00141, is at the edge"
    runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1e-3) ** 2)
    runs.loc[runs["seed"].eq(4) & runs["learning_rate"].eq(RATES[3]), "final_nll"] = np.nan
    assert study.best_rate(runs)[:2] == (pytest.approx(1e-3, rel=0.01), "")


def fair_runs(**shifts):
    """Fresh runs of arms at their distance to 3.3, and the search of their rates."""
    rng = np.random.default_rng(0)
    rows = [
        dict(variation="tuned" if seed >= 200 else f"rate-{rate}", scale="10M", variant=name,
             seed=seed, learning_rate=rate, parameters=10_000_000, validation_tokens=100,
             validation_characters=400,
             final_nll=3.3 + shift + np.log(rate / 1e-3) ** 2 + 0.001 * rng.standard_normal())
        for name, shift in shifts.items()
        for rate, seeds in [(1e-3, range(200, 220)), *((r, range(142, 146)) for r in RATES)]
        for seed in seeds
    ]  # fmt: skip
    return pd.DataFrame(rows)


def no_probes(*rows):
    names = ("scale", "variation", "variant", "seed", "update", "metric", "value")
    return pd.DataFrame(rows, columns=names).astype({"value": float, "seed": int})


def test_comparisons_by_family_with_verdicts(tmp_path):
    shifts = {"mha": 0, "mha-gate": -0.03, "mha-self": -0.2, "full": -0.05, "full-gate": -0.028}
    runs = study.ended(fair_runs(**shifts), no_probes())
    table = study.comparisons(runs, tmp_path).table
    primary = table[table["family"] == "primary"].set_index("comparison")
    name = [study.title(arm) for arm in ("full", "mha", "mha-gate")]
    assert list(primary.index) == [f"{name[0]} − {name[1]}", f"{name[0]} − {name[2]}"]
    assert set(primary["seeds"]) == {"20"} and set(primary["verdict"]) == {"better"}
    rest = table[table["family"] == "arms"]
    assert len(rest) == 4 and set(rest["seeds"]) == {"16"} and set(rest["p"]) == {"0.000"}
    assert (tmp_path / "forest.svg").exists()
    found = study.arms(runs).table.set_index("arm")
    assert found.loc["MHA", "bits/character"].startswith("1.19")  # 3.3 x 100 / 400 / ln 2
    both = ((0.01, 0.9), (0.9, 0.01), (0.01, 0.01), (0.9, 0.9))
    words = [study._verdict("worse", *p) for p in both]
    assert words == ["worse", "equivalent", "both: worse, by less than ±0.01", "not established"]


def test_a_run_that_stopped_enters_with_its_last_finite_loss(tmp_path):
    runs = fair_runs(mha=0, full=-0.05)
    runs.loc[(runs["variant"] == "full") & (runs["seed"] == 203), "final_nll"] = np.nan
    of = ("10M", "tuned", "full", 203)
    probes = no_probes(
        (*of, 20, "validation_nll", 5.25), (*of, 10, "validation_nll", 8.0),
        (*of, 30, "validation_nll", np.inf), (*of, 30, "lambda", 0.5),
    )  # fmt: skip
    runs = study.ended(runs, probes)
    assert runs.loc[runs["final_nll"].isna(), "nll"].tolist() == [5.25]
    arm = study.arms(runs).table.set_index("arm").loc["Full Relation"]
    assert (arm["diverged"], arm["NLL"][:5]) == ("1", "3.350")  # 3.25 + 2 / 20
    row = study.comparisons(runs, tmp_path).table.iloc[0]
    assert row["Welch"].startswith("+0.0") and row["without diverged"].startswith("−0.0")
    runs.loc[runs["seed"] == 201, "learning_rate"] = 2e-3
    with pytest.raises(InputError, match="several learning rates"):
        study.arms(runs)


def test_a_rate_with_a_divergence_shows_no_mean(tmp_path):
    runs = fair_runs(mha=0)
    runs.loc[runs["seed"].eq(143) & runs["learning_rate"].eq(RATES[4]), "final_nll"] = np.nan
    (row,) = study.rates(runs, tmp_path).table.to_dict("records")
    assert row["0.002"] == "1 diverged" and row["rate"] == "0.001"


def test_the_shipped_readings_are_those_of_the_findings(tmp_path):
    titles = {section.title: section for section in study.sections(PUBLISHED, tmp_path)}
    table = titles["What the paper leaves open"].table.set_index("reading")
    assert table.loc["unscaled-sd-0.02", ["MHA", "Relation", "L0 Self flow"]].tolist() == [
        "3.4512", "3.3953", "38.3%",
    ]  # fmt: skip
    assert table.loc["unscaled-sd-0.02", "ρ"] == "0.13"
    for section in titles.values():
        assert not section.figure or (tmp_path / section.figure).read_text().startswith("<?xml")
