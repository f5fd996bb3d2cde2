"""The page Study: the choice of rates, comparisons with known truths, shipped readings."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from conftest import refusal

from relation import plan
from relation import records as stored
from relation.variants import ARMS
from report import fair, stats, study

PUBLISHED = Path("results/published")
RATES = [1e-3 * 2 ** (k / 2) for k in range(-2, 3)]
BUDGET = 150_000_000


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


@pytest.mark.parametrize(
    ("scale", "rates", "seeds", "best"),
    [("10M", RATES, (1, 2, 3, 4), 1.2e-3), ("30M", RATES[1:4], [142], 1.1e-3)],
)
def test_a_quadratic_gives_its_minimum(scale, rates, seeds, best):
    runs = runs_at(rates, seeds, lambda rate, _: 3 + np.log(rate / best) ** 2, scale)
    assert fair.best_rate(runs) == (pytest.approx(best), pytest.approx(3))


def test_the_minimum_stays_between_the_neighbours():
    # The fourth rate is the lowest: NLL is flat to its left and steep to its right.
    values = dict(zip(RATES, (3.5, 3.3, 3.2, 3.19, 3.6), strict=True))
    rate, _ = fair.best_rate(runs_at(RATES, (1, 2, 3, 4), lambda rate, _: values[rate]))
    assert RATES[2] <= rate <= RATES[4]


@pytest.mark.parametrize("edge", [RATES[:2], RATES[2:]])
def test_a_best_rate_that_is_the_highest_or_the_lowest_is_refused(edge):
    runs = runs_at(edge, [142], lambda rate, _: 3 + np.log(rate / 1.1e-3) ** 2, "30M")
    assert "try the next one" in refusal(partial(fair.best_rate, runs))


def fair_runs(deviation=0.001, primary=20, **shifts):
    """Fresh runs of all arms, at 3.3 + shift."""
    rng = np.random.default_rng(0)
    rows = []
    for name in ARMS:
        shift = shifts.get(name, 0)
        nll = 3.3 + shift + deviation * rng.standard_normal(primary)
        seeds = range(200, 200 + primary)
        where = ["tuned" if seed < 216 else "tuned-further" for seed in seeds]
        rows += [run(name, *each) for each in zip(seeds, nll, where, strict=True)]
    return pd.DataFrame(rows)


def both_tables(runs):
    """The tables of both families of comparisons, indexed by comparison."""
    compared = fair.comparison_table(runs)
    tables = {name: study.comparisons(compared, name).table for name in ("primary", "minus-mha")}
    return {name: table.set_index("comparison") for name, table in tables.items()}


def test_planted_differences_and_equivalence_get_their_verdicts():
    shifts = {"mha-gate": -0.03, "mha-self": -0.2, "full": 0.001}
    shifts |= {"mha-qknorm-gate": -0.03, "full-qknorm-gate": -0.05}
    runs = fair_runs(0.01, 48, **shifts)
    first, rest = (both_tables(runs)[name] for name in ("primary", "minus-mha"))
    assert list(first.index) == [study.minus(*pair) for pair in fair.PRIMARY]
    assert list(first["verdict"]) == ["equivalent", "better"]
    assert set(first["seeds"]) == {"48"}
    assert len(rest) == 9 and set(rest["seeds"]) == {"16"}
    assert rest.loc[study.minus("mha-self", "mha"), "verdict"] == "better"
    near = fair_runs(0.002, 48, full=0.004)
    assert both_tables(near)["primary"]["verdict"].iloc[0] == "worse, by less than 0.01"
    noisy = fair_runs(0.1, 48, full=0.001)
    assert both_tables(noisy)["primary"]["verdict"].iloc[0] == "not established"


def test_all_seeds_of_both_arms_enter_a_comparison():
    rng = np.random.default_rng(1)
    rows = [run("mha", s, 3.3 + 0.01 * rng.standard_normal()) for s in range(200, 248)]
    rows += [run("full", s, 3.2 + 0.02 * rng.standard_normal()) for s in range(232, 264)]
    runs = pd.DataFrame(rows)
    full, mha = (runs.loc[runs["variant"] == name, "final_nll"] for name in ("full", "mha"))
    theirs = scipy.stats.ttest_ind(full, mha, equal_var=False)
    comparison = fair.compare_arms(runs, "full", "mha")
    assert comparison.welch.p == pytest.approx(theirs.pvalue, rel=1e-9, abs=0)
    assert comparison.welch.low == pytest.approx(theirs.confidence_interval().low)
    assert comparison.seeds == "32 and 48" and comparison.paired.n == 16
    ours = fair.compare_arms(runs, "full", "mha", fair.FRESH.stop)
    assert ours.seeds == "16 and 48"  # only seeds of the protocol


def test_at_30m_rates_are_multiples_of_each_arms_own(tmp_path):
    rows = [
        run(arm, 142, 3.0 + (i - 1) ** 2 / 10, f"rate30-{factor}", "30M", own * float(factor))
        for arm, own in {"mha": 1.008e-3, "full": 1e-3}.items()
        for i, factor in enumerate(("0.707", "1", "1.41"))
    ]
    (section,) = study.rates(pd.DataFrame(rows), tmp_path)
    table = section.table.set_index("variant")
    assert table.loc["MHA", ["×0.707", "×1", "×1.41"]].tolist() == ["3.1000", "3.0000", "3.1000"]


def test_holm_corrects_over_all_arms():
    runs = fair_runs(0.01, full=-0.05)
    table = fair.comparison_table(runs).set_index("family").loc["minus-mha"]
    alone = fair.compare_arms(fair.runs_of(runs, "10M"), "full", "mha", 216).welch
    first = table[table["over"] == "full"].iloc[0]
    assert first["p"] == pytest.approx(9 * alone.p, rel=1e-9, abs=0) and alone.n == 16


@pytest.mark.parametrize(
    ("p", "within", "words"),
    [(0.049, 0.051, "better"), (0.051, 0.051, "not established"), (0.051, 0.049, "equivalent"),
     (0.049, 0.049, "better, by less than 0.01")],
)  # fmt: skip
def test_a_verdict_is_taken_at_five_percent(p, within, words):
    lower = SimpleNamespace(welch=stats.Estimate(-0.005))
    assert fair.verdict(SimpleNamespace(p=p, within=within, comparison=lower)) == words


def curves(**late):
    """Validation NLL of 16 seeds by tokens. MHA has 4, 3, 2; late: each arm's distances to it."""
    rows = [
        ("10M", "tuned", arm, seed, at, "validation_nll", mha + seed % 5 / 1e3 + apart, at * BUDGET)
        for arm, shares in {"mha": (0, 0, 0), **late}.items()
        for seed in range(200, 216)
        for at, mha, apart in zip((0.2, 0.5, 1.0), (4, 3, 2), shares, strict=True)
    ]  # fmt: skip
    names = ("scale", "variation", "variant", "seed", "update", "metric", "value", "tokens")
    return pd.DataFrame(rows, columns=names)


def test_the_share_of_the_final_difference_that_is_there_early_on_each_horizon(tmp_path):
    both = {"mha-qknorm-gate": (0, 0, 0), "full-qknorm-gate": (0, 0, 0.1)}
    tuned = curves(full=(-0.09, -0.05, -0.1), **both)
    longer = curves(full=(0.09, 0.08, 0.1), **both).assign(variation="long")
    runs = fair_runs()
    runs = pd.concat([runs, runs[runs["variation"] == "tuned"].assign(variation="long")])
    section = study.head_start(runs, pd.concat([tuned, longer]), tmp_path)
    first, _, second, _ = section.table.to_dict("records")
    assert (first["tokens"], first["seeds"]) == ("150M", "16") and second["tokens"] == "600M"
    assert (first["share at 20%"], first["share at 50%"]) == ("90%", "50%")
    assert second["share at 50%"] == "80%"
    assert first["at the end"].startswith("−0.1000") and second["at the end"].startswith("+0.1000")


def test_an_arm_has_its_speed_and_the_time_to_mhas_loss():
    steps = pd.DataFrame({
        "benchmark": "matched", "scale": "10M", "variant": ["mha", "full"],
        "backend": ["cudnn", "flash"], "status": "PASS", "hash": "a", "alone": False,
        "samples": [[100.0] * 8, [90.0] * 8], "tokens_per_second": [1e6, 0.9e6],
    })  # fmt: skip
    runs = fair_runs(full=-0.05).query("variant in ('mha', 'full')")
    table = study.arm_table(runs, curves(full=(0, 0, -1.0)), steps).set_index("variant")
    assert table.loc["MHA", "GPU minutes"] == "2.50"  # 150M tokens at 1M tok/s
    # Its curve falls from 3 to 1 in the second half, and passes MHA's 2 halfway.
    assert table.loc["Relation", "GPU minutes"] == f"{0.75 * BUDGET / 0.9e6 / 60:.2f}"
    assert table.loc["Relation", "tokens/s, MHA’s = 1"] == "0.900"
    never = study.arm_table(runs, curves(full=(0, 0, 0.1)), steps).set_index("variant")
    assert never.loc["Relation", "GPU minutes"] == "not reached"


def test_larger_models_and_longer_runs_stand_beside_the_same_seeds():
    runs = fair_runs(full=-0.05)
    for scale, variation, shift in (("30M", "tuned-30M", -0.3), ("10M", "long", -0.02)):
        for seed in range(200, 204):
            runs.loc[len(runs)] = run("mha", seed, 2.0 + seed / 1e5, variation, scale)
            runs.loc[len(runs)] = run("full", seed, 2.0 + shift, variation, scale)
    runs.loc[len(runs)] = run("mha", 42, 2.5, "tuned-100M28pc", "100M28pc")
    arms, apart = (one.table for one in study.elsewhere(runs))
    alone = arms[arms["runs"] == "1"]
    assert len(arms) == 5 and list(alone["NLL"]) == ["2.5000"]  # one run has no interval
    assert list(alone["bits/character"]) == ["0.9017"]  # 2.5 x 100 / 400 / ln 2
    apart = apart.set_index("condition")
    assert apart.loc["30M on 450M tokens", "Welch"].startswith("−0.302")
    long = apart.loc["10M on 600M tokens"]
    same = fair.compare_arms(runs.query("variation == 'tuned' and seed < 204"), "full", "mha")
    assert long["Welch"].startswith("−0.022")
    assert long["150M tokens, same seeds"] == f"{same.welch:+.4f}"


def test_variants_that_ran_at_half_the_rate_are_compared_at_their_better_one():
    tuned, half = "tuned-100M28pc", "rate100-0.5"
    losses = {
        ("mha", tuned): 2.50,
        ("mha", half): 2.40,
        ("full", tuned): 2.45,
        ("full", half): 2.46,
    }
    losses |= {("mha-qknorm-gate", tuned): 2.30}  # has one rate
    runs = pd.DataFrame(run(arm, 42, nll, at, "100M28pc") for (arm, at), nll in losses.items())
    arms, apart = (one.table for one in study.elsewhere(pd.concat([fair_runs(), runs])))
    large, additions = "100M, 28% of its tokens", study.minus("mha-qknorm-gate", "mha")
    assert apart.set_index(["condition", "comparison"])["Welch"].to_dict() == {
        (f"{large}, rates from 30M", "Relation − MHA"): "−0.0500",
        (f"{large}, rates from 30M", additions): "−0.2000",
        (f"{large}, half the rates from 30M", "Relation − MHA"): "+0.0600",
        (f"{large}, best rates", "Relation − MHA"): "+0.0500",
    }  # fmt: skip
    better = arms[arms["condition"].str.endswith("best rates")]
    assert dict(zip(better["variant"], better["NLL"], strict=True)) == {
        "MHA": "2.4000", "Relation": "2.4500",
    }  # fmt: skip


def test_the_shipped_readings_are_those_of_the_findings(tmp_path):
    names = {section.name: section for section in study.sections(tmp_path, [])}
    arms = names["readings"].table.set_index(["W_O, W_down", "changed"])
    expected = ["3", "3.4512", "3.3953", "38.3%", "4.4%", "3.09", "3.3%", "0.91", "0.13"]
    row = arms.loc["as the others", "nothing"]
    assert row.drop(["Relation − MHA", ""]).tolist() == expected
    assert row["Relation − MHA"].startswith("−0.0560 (") and row[""].n == 3
    assert arms.loc["divided by sqrt(2L)", "embedding × 2"]["ρ"] == "0.90"
    assert arms.loc["as the others", "embedding with an sd of 1/sqrt(d)"]["ρ"] == "0.33"
    assert arms.loc["as the others", "projections start as PyTorch’s"]["ρ"] == "0.06"
    for name, section in names.items():
        assert not section.figure or (tmp_path / f"{name}.svg").read_text().startswith("<?xml")


def test_the_shipped_comparison_follows_its_protocol(tmp_path):
    runs = stored.load(PUBLISHED / "fair")["runs"]
    # None diverged: all ended, none far above the others of its arm at its rate.
    kind = runs["variation"].str.split("-").str[0].rename("kind")
    same_rate = runs.groupby([kind, "scale", "variant", "learning_rate"])["final_nll"]
    assert (runs["final_nll"] < same_rate.transform("median") + 0.5).all()
    # The searches give the primary arms, and the rate of every fresh run.
    search = runs[runs["variation"].str.match("rate(30)?-")].groupby(["scale", "variant"])
    best = {names: fair.best_rate(arm_runs) for names, arm_runs in search}
    lowest = {}
    for kind in ("full", "mha"):
        arms = [arm for scale, arm in best if scale == "10M" and arm.startswith(kind)]
        lowest[kind] = min(set(arms) - {"mha-self"}, key=lambda arm: best["10M", arm][1])
    assert (("full", "mha"), (lowest["full"], lowest["mha"])) == fair.PRIMARY
    for run in plan.load({"campaign": "fair"}).planned:
        if run.variation.startswith(("tuned", "long", "rate100")):
            large = run.scale == "100M28pc"  # 6e-4 times the arm's factor at 30M, or a part of this
            rate, _ = best["30M" if large else run.scale, run.variant]
            part = run.variation.removeprefix("rate100-")
            carried = (1 if part == run.variation else float(part)) * 6e-4 * rate / 8e-4
            assert run.learning_rate == pytest.approx(carried if large else rate)
    section, *_ = study.rates(runs, tmp_path)
    row = section.table.set_index("variant").loc["MHA"]
    # A dash marks a rate that was not tried.
    assert row[["0.001", "0.00283", "rate"]].tolist() == ["3.2991", "—", "0.00126"]
    assert row[["fitted", "new seeds"]].tolist() == ["3.2766", "3.2875"]
    first = both_tables(runs)["primary"]
    assert list(first["verdict"]) == ["better, by less than 0.01", "equivalent"]
    assert first["Welch"].iloc[0].startswith("−0.0042") and set(first["seeds"]) == {"48"}
    summary = study.fair_summary(fair.comparison_table(runs), runs)
    for condition, text in (
        ("10M on 150M tokens", "−0.0042 (−0.0073 to −0.0011), 48 seeds: better, by less than 0.01"),
        ("30M on 450M tokens", "−0.0022 (−0.0093 to +0.0049), 6 seeds: "),
    ):
        pair, verdict = summary[condition]["Relation − MHA"]
        assert f"{pair.welch:+.4f}, {pair.seeds} seeds: {verdict}" == text
    better = summary["100M, 28% of its tokens, best rates"]
    assert [pair is None for pair, _ in better.values()] == [False, True]


def test_diverged_runs_are_counted_beside_all_runs():
    arm_runs = pd.DataFrame([run("mha", seed, nll) for seed, nll in enumerate((3.2, 3.4, np.nan))])
    row = study.arm_row(arm_runs)
    assert row["runs"] == "3, 1 diverged"
    assert row["NLL"].startswith("3.3000 (")


def test_a_folder_without_shipped_runs_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(lambda: study.sections(tmp_path, []))
    assert "results/published/books has no runs; restore" in message
