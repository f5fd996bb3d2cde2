"""The page Study: the protocol's choice of a rate, the arms, and the shipped readings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from report import study

PUBLISHED = Path("results/published")


def runs_at(rates, seeds, nll):
    """Runs of one arm; nll(rate, seed) -> final NLL."""
    rows = [(rate, seed, nll(rate, seed)) for rate in rates for seed in seeds]
    return pd.DataFrame(rows, columns=["learning_rate", "seed", "final_nll"])


RATES = [1e-3 * 2 ** (k / 2) for k in range(-2, 3)]


def test_a_quadratic_gives_its_minimum():
    runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1.2e-3) ** 2)
    assert study.best_rate(runs) == (pytest.approx(1.2e-3), "")


def test_the_minimum_stays_between_the_neighbours():
    # Flat but for a steep fall at the middle rate's right: the parabola would go beyond.
    values = dict(zip(RATES, (3.5, 3.3, 3.2, 3.19, 3.6), strict=True))
    rate, why = study.best_rate(runs_at(RATES, (1, 2, 3, 4), lambda rate, _: values[rate]))
    assert why == "" and RATES[2] <= rate <= RATES[4]


def test_an_edge_and_missing_seeds_leave_the_rate_open():
    falling = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 - rate)
    assert study.best_rate(falling)[0] is None and "edge" in study.best_rate(falling)[1]
    few = runs_at(RATES, (1, 2), lambda rate, _: 3 + np.log(rate / 1.1e-3) ** 2)
    assert "two more seeds at 0.000707, 0.001, 0.00141" in study.best_rate(few)[1]


def test_a_divergence_ranks_behind_all_others():
    def nll(rate, seed):
        return np.nan if (rate, seed) == (RATES[2], 1) else 3 + np.log(rate / 1e-3) ** 2

    runs = runs_at(RATES, (1, 2, 3, 4), nll)
    rate, _ = study.best_rate(runs)
    assert rate is None or rate != pytest.approx(1e-3)


def test_arms_are_compared_on_their_shared_seeds(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        dict(variation="tuned", scale="10M", variant=variant, seed=seed, learning_rate=1e-3,
             final_nll=3.3 + shift + 0.001 * rng.standard_normal(), parameters=10_000_000,
             validation_tokens=100, validation_characters=400)
        for variant, shift in (("mha", 0.0), ("full", -0.05)) for seed in range(200, 216)
    ]  # fmt: skip
    found = study.arms(pd.DataFrame(rows), tmp_path)
    table = found.table.set_index("arm")
    assert table.loc["Full Relation", "less MHA, Welch"].startswith("−0.0")
    assert table.loc["MHA", "p"] == "" and table.loc["Full Relation", "p"] == "0.000"
    assert table.loc["Full Relation", "p within ±0.01"] == "1.000"
    assert table.loc["MHA", "bits/character"].startswith("1.19")  # 3.3 x 100 / 400 / ln 2
    assert (tmp_path / "forest.svg").exists()


def test_the_shipped_readings_are_those_of_the_findings(tmp_path):
    titles = {section.title: section for section in study.sections(PUBLISHED, tmp_path)}
    table = titles["What the paper leaves open"].table.set_index("reading")
    assert table.loc["unscaled-sd-0.02", ["MHA", "Relation", "L0 Self flow"]].tolist() == [
        "3.4512", "3.3953", "38.3%",
    ]  # fmt: skip
    assert table.loc["unscaled-sd-0.02", "ρ"] == "0.13"
    for section in titles.values():
        assert not section.figure or (tmp_path / section.figure).read_text().startswith("<?xml")
