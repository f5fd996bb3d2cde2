"""Tolerances and verdicts: every printed cell is covered, and each kind judges as it says."""

from dataclasses import replace

import pytest
from paper_records import GPU, paper_records
from test_report_records import make_empty, make_records

from relation.errors import InputError
from report.judge.cells import build
from report.judge.setting import Setting
from report.judge.tolerances import Rule, load_rules, rule_for
from report.judge.verdicts import judge
from report.render.behind import behind_cells
from report.render.printed import print_table
from report.values.paper import by_seed, load, number, spread
from report.values.statistics import t_quantile
from report.values.tables import TABLES

ON_PAPER_GPU = Setting(other_models="", other_corpora="", devices=(GPU,))
ON_CPU = replace(ON_PAPER_GPU, devices=("CPU (x86_64, 1 thread)",))
ON_H200 = replace(ON_PAPER_GPU, devices=("NVIDIA H200",))
MINIATURE = replace(ON_PAPER_GPU, other_models="10M has 3 layers")
OTHER_TEXTS = replace(ON_PAPER_GPU, other_corpora="10M reads other texts")


def printed_cell(table: str, row: str, column: str, statistic: str = "value", **changes) -> dict:
    """The paper's cell as a campaign that measured the same has it."""
    found = load(table)[row, column, statistic]
    cell = {
        "table": table, "row": row, "column": column, "statistic": statistic,
        "paper": found.printed, "paper_value": found.number, "value": found.number,
        "text": found.printed if found.number is None else None, "status": "ok",
    }  # fmt: skip
    return cell | changes


def verdict(cell: dict, margin: float | None = None, setting: Setting = ON_PAPER_GPU):
    return judge(cell, margin, rule_for(cell, load_rules()), setting)


def test_every_printed_cell_is_covered_by_one_rule_and_every_rule_covers_one() -> None:
    rules, used = load_rules(), set()
    for table in TABLES:
        for row, column, statistic in load(table.label):
            key = {"table": table.label, "row": row, "column": column, "statistic": statistic}
            used.add(rule_for(key, rules))
    assert used == set(rules)
    assert all(len(rule.why) > 20 for rule in rules)


def test_the_papers_own_values_are_within_wherever_they_are_judged() -> None:
    cells = build(paper_records())
    printed = cells[cells["paper"].notna()]
    assert set(printed["verdict"]) == {"same", "within", "not judged"}
    judged = printed[(printed["status"] == "ok") & (printed["statistic"] != "sd")]
    left = judged[judged["verdict"] == "not judged"]
    # Of which no mean over seeds is printed: pooled from values that are themselves rounded.
    left = left[left["table"] != "app-ablation"]  # zero by construction
    assert len(left) <= 6 and set(left["table"]) <= {"relation_internal", "app-structural-spectrum"}
    assert (cells[cells["paper"].isna()]["verdict"].isna()).all()


def test_a_miniature_is_not_judged_and_neither_is_what_is_not_there() -> None:
    for records in (make_records(), make_empty()):
        cells = build(records)
        printed = cells[cells["paper"].notna()]
        assert set(printed["verdict"]) == {"not judged"} and printed["verdict_reason"].all()
    empty = build(replace(make_empty(), page=paper_records().page))
    assert set(empty["verdict"].dropna()) == {"not judged"}


def test_a_loss_never_reached_is_outside_where_the_paper_has_a_number() -> None:
    cell = printed_cell(
        "app-token-efficiency", "10M/42", "crossing", value=float("nan"), status="not reached"
    )
    assert verdict(cell).verdict == verdict(cell, setting=OTHER_TEXTS).verdict == "outside"
    assert verdict(cell, setting=MINIATURE).verdict == "not judged"
    assert verdict(cell | {"status": "not run"}).verdict == "not judged"


@pytest.mark.parametrize("value, margin, expected", [
    (1.6441, None, "within"),
    (1.6441 + 0.0124, None, "within"),      # one standard deviation of the paper
    (1.6441 + 0.0130, None, "outside"),
    (1.6441 + 0.0500, 0.06, "within"),      # the paper's value in our interval
    (1.6441 + 0.0500, 0.04, "outside"),
])  # fmt: skip
def test_a_mean_is_held_to_our_interval_or_the_papers_spread(value, margin, expected) -> None:
    cell = printed_cell("main-results", "10M", "full_nll", "mean", value=value)
    judged = verdict(cell, margin)
    assert judged.verdict == expected
    assert judged.tolerance == pytest.approx(max(margin or 0, 0.012448), rel=1e-3)


def test_a_structural_mean_of_one_seed_has_no_interval() -> None:
    cell = printed_cell("relation_internal", "10M", "l0_self.full", value=28.9)
    assert verdict(cell).verdict == "not judged"
    assert verdict(cell, 0.2).verdict == "outside" and verdict(cell, 0.4).verdict == "within"
    assert verdict(cell | {"value": 28.574}).verdict == "within"  # what the paper rounds to 28.57


def test_two_runs_differ_by_students_quantile_of_the_difference() -> None:
    (factor,) = {rule.factor for rule in load_rules() if rule.kind == "seed"}
    # The paper's deviation is of three seeds: two degrees of freedom.
    assert factor == pytest.approx(t_quantile(2) * 2**0.5, rel=2e-3)


def test_a_difference_that_is_zero_by_construction_is_not_judged() -> None:
    judged = verdict(printed_cell("app-ablation", "full", "delta"))
    assert judged.verdict == "not judged" and "by construction" in judged.reason


def test_a_single_run_may_differ_by_two_runs_spreads() -> None:
    allowed = 6.08 * 0.004212
    cell = printed_cell("app-nll", "10M/42", "mha")
    near, far = (cell | {"value": cell["value"] + f * allowed} for f in (0.99, 1.02))
    assert verdict(near).verdict == "within" and verdict(far).verdict == "outside"
    assert verdict(near).tolerance == pytest.approx(allowed, rel=1e-3)


def test_counts_settings_and_words_are_exact() -> None:
    count = printed_cell("app-configs", "10M", "params.full")
    assert verdict(count).verdict == "same" and verdict(count).tolerance == 0
    assert verdict(count | {"value": count["value"] + 1}).verdict == "outside"
    words = printed_cell("app-configs", "10M", "geometry")
    assert verdict(words).verdict == "same"
    assert verdict(words | {"text": "6/384/8x48/769"}).verdict == "outside"


@pytest.mark.parametrize("setting, expected", [
    (ON_PAPER_GPU, "within"), (OTHER_TEXTS, "not judged"), (MINIATURE, "not judged"),
])  # fmt: skip
def test_losses_need_the_papers_texts(setting: Setting, expected: str) -> None:
    assert verdict(printed_cell("app-nll", "10M/42", "mha"), setting=setting).verdict == expected
    delta = verdict(printed_cell("app-nll", "10M/42", "delta"), setting=setting)
    assert delta.verdict == ("not judged" if setting is MINIATURE else "within")


@pytest.mark.parametrize("setting, rate, ratio", [
    (ON_PAPER_GPU, "within", "within"), (ON_H200, "not judged", "within"),
    (ON_CPU, "not judged", "not judged"), (replace(ON_CPU, devices=()), "not judged", "not judged"),
])  # fmt: skip
def test_speed_needs_the_papers_gpu_and_a_ratio_any(setting, rate: str, ratio: str) -> None:
    rates = printed_cell("efficient-relation", "10M", "matched.full")
    assert verdict(rates, setting=setting).verdict == rate
    ratios = printed_cell("efficient-relation", "10M", "matched.ratio")
    assert verdict(ratios, setting=setting).verdict == ratio


def test_ratios_are_held_to_the_papers_worst_and_rates_to_its_own() -> None:
    speedup = printed_cell("efficient-relation", "10M", "fixed.speedup")
    for value, expected in ((4.166, "within"), (4.16, "outside"), (9.0, "within")):
        assert verdict(speedup | {"value": value}).verdict == expected
    rate = printed_cell("efficient-relation", "10M", "matched.full")
    for share, expected in ((0.96, "within"), (0.94, "outside"), (3.0, "within")):
        assert verdict(rate | {"value": rate["value"] * share}).verdict == expected
    memory = printed_cell("app-prod-fr-fa", "10M", "allocated.full")
    for share, expected in ((0.1, "within"), (1.04, "within"), (1.07, "outside")):
        assert verdict(memory | {"value": memory["value"] * share}).verdict == expected


def test_a_rule_with_one_side_has_a_bound_and_no_tolerance() -> None:
    ratio = verdict(printed_cell("efficient-relation", "100M", "matched.ratio"))
    assert (ratio.tolerance, ratio.least, ratio.most) == (None, 0.897, None)
    rate = printed_cell("efficient-relation", "10M", "matched.full")
    assert verdict(rate).least == pytest.approx(0.95 * rate["paper_value"])
    memory = printed_cell("app-prod-fr-fa", "10M", "allocated.full")
    assert verdict(memory).most == pytest.approx(1.05 * memory["paper_value"])


def test_a_bound_is_printed_as_the_rule_has_it() -> None:
    (table,) = (table for table in TABLES if table.label == "efficient-relation")
    cells = build(paper_records(), table.label)
    printed = print_table(table, cells[cells["table"] == table.label])
    texts = {
        entry.text
        for block in printed.panels
        for row in block.rows
        if row.verdicts
        for entry in row.verdicts.entries
    }
    assert {"≥ 4.17×", "≥ 0.897×"} <= texts and not any("±" in text for text in texts)
    shown = behind_cells(printed, {})["cells"].values()
    bounds = {fact[1] for cell in shown for value in cell["values"] for fact in value["facts"]
              if fact[0] == "Bound"}  # fmt: skip
    assert {"at least 4.17 x", "at least 0.897 x"} <= bounds


def test_the_papers_seeds_behind_a_cell() -> None:
    assert spread("app-nll", "10M/mean", "mha") == pytest.approx(0.004212, abs=1e-6)
    assert spread("main-results", "10M", "token_reduction") == pytest.approx(3.35, abs=0.01)
    differences = by_seed("structural-ablations", "delta", "raw-x")
    assert differences[42] == pytest.approx(1.672332 - 1.631738)
    assert by_seed("relation_internal", "10M", "l0_self.full") == {}
    assert number("app-nll", "10M/42", "nowhere") is None


RULE = '[[rule]]\ntable = "app-nll"\nkind = "exact"\nwhy = "A reason."\n'


@pytest.mark.parametrize("text, said", [
    (RULE.replace("exact", "about"), "kind 'about'"),
    (RULE + 'needs = ["sun"]\n', "needs 'sun'"),
    (RULE + "typo = 1\n", "unknown key 'typo'"),
    (RULE.replace('why = "A reason."\n', ""), "why is missing"),
    (RULE + "factor = 2.0\n", "factor"),
    (RULE.replace("exact", "own"), "better"),
    ("other = 1\n" + RULE, "nothing else"),
    ("[[rule", "is not TOML"),
])  # fmt: skip
def test_a_wrong_tolerances_file_is_told_in_one_line(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "tolerances.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said) as caught:
        load_rules(path)
    assert "\n" not in str(caught.value)


def test_a_cell_that_no_rule_or_two_cover_is_refused() -> None:
    rule = Rule("exact", "A reason.", ("app-nll",))
    cell = printed_cell("app-nll", "10M/42", "mha")
    assert rule_for(cell, [rule]) is rule
    for rules in ([], [rule, rule]):
        with pytest.raises(InputError, match="app-nll / 10M/42 / mha / value"):
            rule_for(cell, rules)
