"""The page Study: the choice of rates, comparisons with known truths, shipped readings."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from relation import records as stored
from relation.errors import InputError
from report import fair, study
from report.figures.style import styled

PUBLISHED = Path("results/published")
RATES = [1e-3 * 2 ** (k / 2) for k in range(-2, 3)]
BUDGET = 150_000_000


def no_probes(*rows):
    names = ("scale", "variation", "variant", "seed", "update", "metric", "value", "tokens")
    return pd.DataFrame(rows, columns=names).astype({"value": float, "seed": int})


def run(variant, seed, nll, variation="tuned", scale="10M", rate=1e-3):
    fields = {"parameters": 10_000_000, "validation_tokens": 100, "validation_characters": 400}
    fields |= {"corpus_fingerprint": "x", "vocabulary": 4096, "hash": "unplanned"}
    key = {"scale": scale, "variation": variation, "variant": variant, "seed": seed}
    fields |= {"backend": "cudnn" if variant == "mha" else "flash", "learning_rate": rate}
    return key | fields | {"final_nll": nll}


def runs_at(rates, seeds, nll, scale="10M"):
    """The rate search of one arm; nll(rate, seed) returns the final NLL."""
    rows = [run("mha", s, nll(r, s), f"rate-{r}", scale, r) for r in rates for s in seeds]
    return pd.DataFrame(rows)


def best_rate(runs):
    return fair.best_rate(fair.with_last_loss(runs, no_probes()))[0]


def test_a_quadratic_gives_its_minimum():
    runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1.2e-3) ** 2)
    best = fair.best_rate(fair.with_last_loss(runs, no_probes()))
    assert best == (pytest.approx(1.2e-3), pytest.approx(3))


def test_the_minimum_stays_between_the_neighbours():
    # The fourth rate is the lowest: NLL is flat to its left and steep to its right.
    values = dict(zip(RATES, (3.5, 3.3, 3.2, 3.19, 3.6), strict=True))
    rate = best_rate(runs_at(RATES, (1, 2, 3, 4), lambda rate, _: values[rate]))
    assert RATES[2] <= rate <= RATES[4]


def test_at_30m_three_rates_of_one_seed_give_the_minimum():
    def nll(rate, _):
        return 3 + np.log(rate / 1.1e-3) ** 2

    assert best_rate(runs_at(RATES[1:4], [142], nll, "30M")) == pytest.approx(1.1e-3)
    edge = best_rate(runs_at(RATES[:3], [142], lambda rate, _: 3 - rate, "30M"))
    assert edge == RATES[2]  # not outside of the tried rates
    assert best_rate(runs_at(RATES[:2], [142], nll, "30M")) is None


def test_a_divergence_ranks_behind_all_others():
    for lost in (np.nan, 3.6):  # a stopped run, and a run far above the median of its rate
        runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1.6e-3) ** 2)
        runs.loc[runs["seed"].eq(1) & runs["learning_rate"].eq(RATES[3]), "final_nll"] = lost
        assert best_rate(runs) is None  # the best is 2e-3, at the edge
    assert best_rate(runs[runs["seed"].eq(2)]) is None
    runs = runs_at(RATES, (1, 2, 3, 4), lambda rate, _: 3 + np.log(rate / 1e-3) ** 2)
    runs.loc[runs["seed"].eq(4) & runs["learning_rate"].eq(RATES[3]), "final_nll"] = np.nan
    assert best_rate(runs) == pytest.approx(1e-3, rel=0.01)


def fair_runs(deviation=0.001, primary=20, **shifts):
    """Fresh runs of arms, at 3.3 + shift, and the search of their rates."""
    rng = np.random.default_rng(0)
    rows = []
    for name, shift in shifts.items():
        nll = 3.3 + shift + deviation * rng.standard_normal(primary)
        seeds = range(200, 200 + primary)
        where = ["tuned" if seed < 216 else "tuned-further" for seed in seeds]
        rows += [run(name, *each) for each in zip(seeds, nll, where, strict=True)]
        rows += [
            run(name, seed, 3.3 + shift + np.log(rate / 1e-3) ** 2, f"rate-{rate}", rate=rate)
            for rate in RATES
            for seed in range(142, 146)
        ]
    return pd.DataFrame(rows)


def both_tables(runs):
    """The tables of both families of comparisons, indexed by comparison."""
    sections = {name: study.comparison_sections(runs, name) for name in ("primary", "minus-mha")}
    return {name: section.table.set_index("comparison") for name, (section,) in sections.items()}


def test_planted_differences_and_equivalence_get_their_verdicts():
    shifts = {name: 0 for name in study.ARMS}
    shifts |= {"mha-gate": -0.03, "mha-self": -0.2, "full": 0.001, "full-gate": -0.05}
    runs = fair.with_last_loss(fair_runs(0.01, 48, **shifts), no_probes())
    first, rest = (both_tables(runs)[name] for name in ("primary", "minus-mha"))
    assert list(first.index) == [study.minus("full", "mha"), study.minus("full-gate", "mha-gate")]
    assert list(first["verdict"]) == ["equivalent", "better"]
    assert set(first["seeds"]) == {"48"}
    assert len(rest) == 9 and set(rest["seeds"]) == {"16"}
    assert rest.loc[study.minus("mha-self", "mha"), "verdict"] == "better"
    assert "open" not in study.fair_summary(runs)
    near = fair.with_last_loss(fair_runs(0.002, 48, mha=0, full=0.004), no_probes())
    assert both_tables(near)["primary"]["verdict"].iloc[0] == "worse, by less than 0.01"
    noisy = fair.with_last_loss(fair_runs(0.1, 48, mha=0, full=0.001), no_probes())
    assert both_tables(noisy)["primary"]["verdict"].iloc[0] == "not established"


def test_no_verdict_before_all_seeds(tmp_path):
    runs = fair_runs(0.001, 40, **{"mha": 0, "full": -0.05, "full-gate": -0.1})
    gone = runs["variant"].eq("full-gate") & runs["variation"].str.startswith("tuned")
    runs = fair.with_last_loss(runs[~gone], no_probes())
    first, rest = both_tables(runs).values()
    assert list(first["verdict"]) == ["open: 40 of 48 seeds", "open: 0 of 48 seeds"]
    assert list(first["p"]) == ["—", "—"]
    lacking = "open: waits for 8 comparisons of its family"
    assert rest.loc[study.minus("full", "mha"), "verdict"] == lacking and set(rest["p"]) == {"—"}
    (fresh,) = study.arm_sections(runs, no_probes(), no_steps())
    summary = study.fair_summary(runs)
    assert len(fresh.table) == 2 and summary.endswith("0 are here.")
    assert "so far" in summary and "−0.0492) nat/token, open: 40 of 48 seeds." in summary
    assert f"{study.minus('full-gate', 'mha')}: open: 0 of 48 seeds." in summary
    with styled():
        study.worth(runs, tmp_path)
    drawn = (tmp_path / "worth.svg").read_text()
    assert "Full Relation, 40 seeds" in drawn and "gate" not in drawn


def test_all_seeds_of_both_arms_enter_a_comparison():
    rng = np.random.default_rng(1)
    rows = [run("mha", s, 3.3 + 0.01 * rng.standard_normal()) for s in range(200, 248)]
    rows += [run("full", s, 3.2 + 0.02 * rng.standard_normal()) for s in range(232, 264)]
    runs = fair.with_last_loss(pd.DataFrame(rows), no_probes())
    full, mha = (runs.loc[runs["variant"] == name, "nll"] for name in ("full", "mha"))
    theirs = scipy.stats.ttest_ind(full, mha, equal_var=False)
    comparison = fair.compare_arms(runs, "full", "mha")
    assert comparison.welch.p == pytest.approx(theirs.pvalue)
    assert comparison.welch.low == pytest.approx(theirs.confidence_interval().low)
    assert comparison.seeds == "32 and 48" and comparison.paired.n == 16
    later = fair.comparison_table(runs).set_index("family").loc["primary"]
    assert later.iloc[0]["comparison"].seeds == "16 and 48"  # only seeds of the protocol


def test_at_30m_rates_are_multiples_of_each_arms_own(tmp_path):
    rows = [
        run(arm, 142, 3.0 + i / 10, f"rate30-{factor}", "30M", own * float(factor))
        for arm, own in {"mha": 1.008e-3, "full": 1e-3}.items()
        for i, factor in enumerate(("0.707", "1", "1.41"))
    ]
    (section,) = study.rates(fair.with_last_loss(pd.DataFrame(rows), no_probes()), tmp_path)
    table = section.table.set_index("variant")
    assert table.loc["MHA", ["×0.707", "×1", "×1.41"]].tolist() == ["3.0000", "3.1000", "3.2000"]


def test_holm_corrects_over_all_arms():
    means = dict.fromkeys(study.ARMS, 0) | {"full": -0.05}
    runs = fair.with_last_loss(fair_runs(0.01, **means), no_probes())
    table = fair.comparison_table(runs).set_index("family").loc["minus-mha"]
    alone = fair.compare_arms(fair.runs_of(runs, "10M"), "full", "mha", 216).welch
    first = table[table["over"] == "full"].iloc[0]
    assert first["p"] == pytest.approx(9 * alone.p) and alone.n == 16


def test_a_run_that_stopped_enters_with_its_last_finite_loss():
    runs = fair_runs(mha=0, full=-0.05)
    runs.loc[runs["variant"].eq("full") & runs["seed"].eq(203), "final_nll"] = np.nan
    key = ("10M", "tuned", "full", 203)
    looks = [(10, 7.0), (20, 5.25), (30, np.inf)]
    probes = no_probes(*((*key, at, "validation_nll", nll, at) for at, nll in looks))
    probes.loc[3] = ["10M", "tuned", "mha", 203, 30, "validation_nll", 3.3, 30]
    runs = fair.with_last_loss(runs, probes)
    assert runs.loc[runs["final_nll"].isna(), "nll"].tolist() == [5.25]
    (fresh,) = study.arm_sections(runs, probes, no_steps())
    arm = fresh.table.set_index("variant").loc["Full Relation"]
    assert (arm["diverged"], arm["NLL"][:5]) == ("1", "3.350")  # 3.25 + 2 / 20
    row = both_tables(runs)["primary"].iloc[0]
    assert row["Welch"].startswith("+0.0") and row["without diverged"].startswith("−0.0")
    assert study.validation(probes, runs).loc[30, ("full", 203)] == 5.25  # in the curve, too
    runs.loc[runs["seed"] == 201, "learning_rate"] = 2e-3
    with pytest.raises(InputError, match=r"rates 0\.001, 0\.002"):
        study.arm_sections(runs, probes, no_steps())
    runs.loc[runs["variation"].str.startswith("tuned"), "learning_rate"] = 2e-3
    with pytest.raises(InputError, match="its search gives"):
        study.arm_sections(runs, probes, no_steps())


def no_steps(*rows):
    names = ("benchmark", "scale", "variant", "backend", "status", "hash", "alone", "samples")
    return pd.DataFrame(rows, columns=[*names, "tokens_per_second"])


def curves(**late):
    """Validation NLL of 16 seeds by tokens. MHA has 4, 3, 2; late: each arm's distances to it."""
    rows = [
        ("10M", "tuned", arm, seed, at, "validation_nll", mha + seed % 5 / 1e3 + apart, at * BUDGET)
        for arm, shares in {"mha": (0, 0, 0), **late}.items()
        for seed in range(200, 216)
        for at, mha, apart in zip((0.2, 0.5, 1.0), (4, 3, 2), shares, strict=True)
    ]  # fmt: skip
    return no_probes(*rows)


def test_the_share_of_the_final_difference_that_is_there_early_on_each_horizon(tmp_path):
    tuned = curves(full=(-0.09, -0.05, -0.1))
    longer = curves(full=(0.09, 0.08, 0.1)).assign(variation="long")
    probes, runs = pd.concat([tuned, longer]), fair_runs(mha=0, full=0)
    runs = pd.concat([runs, runs[runs["variation"] == "tuned"].assign(variation="long")])
    section = study.head_start(fair.with_last_loss(runs, probes), probes, tmp_path)
    first, second = section.table.to_dict("records")
    assert (first["tokens"], first["seeds"]) == ("150M", "16") and second["tokens"] == "600M"
    assert (first["share at 20%"], first["share at 50%"]) == ("90%", "50%")
    assert second["share at 50%"] == "80%"
    assert first["at the end"].startswith("−0.1000") and second["at the end"].startswith("+0.1000")


def test_an_arm_has_its_speed_and_the_time_to_mhas_loss_or_says_why_not():
    key = ("matched", "10M")
    steps = no_steps(
        (*key, "mha", "cudnn", "PASS", "a", False, [100.0] * 8, 1e6),
        (*key, "full", "flash", "PASS", "a", False, [90.0] * 8, 0.9e6),
    )
    probes = curves(full=(0, 0, -1.0), **{"full-gate": (0, 0, 0.1)})
    runs = fair.with_last_loss(fair_runs(mha=0, full=-0.05, **{"full-gate": 0.1}), no_probes())
    (fresh,) = study.arm_sections(runs, probes, steps)
    table = fresh.table.set_index("variant")
    assert table.loc["MHA", "GPU minutes"] == "2.50"  # 150M tokens at 1M tok/s
    # Its curve falls from 3 to 1 in the second half, and passes MHA's 2 halfway.
    assert table.loc["Full Relation", "GPU minutes"] == f"{0.75 * BUDGET / 0.9e6 / 60:.2f}"
    assert table.loc["Full Relation", "tokens/s, MHA’s = 1"].startswith("0.900")
    assert table.loc["Full Relation + gate", "GPU minutes"] == "not measured"


def test_larger_models_and_longer_runs_stand_beside_the_same_seeds():
    runs = fair_runs(mha=0, full=-0.05)
    for scale, variation, shift in (("30M", "tuned-30M", -0.3), ("10M", "long", -0.02)):
        for seed in range(200, 204):
            runs.loc[len(runs)] = run("mha", seed, 2.0 + seed / 1e5, variation, scale)
            runs.loc[len(runs)] = run("full", seed, 2.0 + shift, variation, scale)
    runs.loc[len(runs)] = run("mha", 42, 2.5, "tuned-100M28pc", "100M28pc")
    arms, apart = (one.table for one in study.elsewhere(fair.with_last_loss(runs, no_probes())))
    alone = arms[arms["runs"] == "1"]
    assert len(arms) == 5 and list(alone["NLL"]) == ["2.5000"]  # one run has no interval
    assert list(alone["bits/character"]) == ["0.9017"]  # 2.5 x 100 / 400 / ln 2
    apart = apart.set_index("setting")
    assert apart.loc["30M", "Welch"].startswith("−0.302")
    long = apart.loc["10M on 600M tokens"]
    assert long["Welch"].startswith("−0.022") and long["150M tokens, same seeds"][:4] == "−0.0"


def test_the_shipped_readings_are_those_of_the_findings(tmp_path):
    names = {section.name: section for section in study.sections(tmp_path)}
    row = (
        names["readings"]
        .table.set_index(["W_O, W_down", "changed"])
        .loc["as the others", "nothing"]
    )
    assert row[["MHA", "Relation", "L0 Self flow"]].tolist() == ["3.4512", "3.3953", "38.3%"]
    assert row["ρ"] == "0.13"
    for name, section in names.items():
        assert not section.figure or (tmp_path / f"{name}.svg").read_text().startswith("<?xml")


def test_the_shipped_comparison_is_that_of_the_findings(tmp_path):
    shipped = stored.load(PUBLISHED / "fair")
    runs = fair.with_last_loss(shipped["runs"], shipped["probes"])
    section, _ = study.rates(runs, tmp_path)  # at 10M, and at 30M
    row = section.table.set_index("variant").loc["MHA"]
    # A dash marks a rate that was not tried.
    assert row[["0.001", "0.00283", "best rate"]].tolist() == ["3.2991", "—", "0.00126"]
    first = both_tables(runs)["primary"]
    assert list(first["verdict"]) == ["better, by less than 0.01", "equivalent"]
    assert first["Welch"].iloc[0].startswith("−0.0042") and set(first["seeds"]) == {"48"}
