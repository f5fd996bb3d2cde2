"""The claims on the paper's own values, and on failing, larger, smaller and missing values.

A setting is a frame of cells, from its tables, and records, with its checks and models. `PAPER` and
`records()` are those of a setting that measured exactly what the paper prints. Each test changes
some (`changed`), removes some (`gone`) or spoils checks (`with_checks`), and asks for the verdicts
(`judged`).
"""

import math
from functools import partial
from types import SimpleNamespace

import pandas as pd
import pytest
import scipy.stats

from report import claims, paper, stats
from report.evidence import Evidence, Term, below, compare, outcome

GPU = "NVIDIA GeForce RTX 5090"
# Claims that the paper's own tables decide, and those that checks of the code decide.
TABLES_DECIDE = (*range(1, 15), 17, 19, 20, 21)
CHECKED = (15, 18, 22, 23, 24)
INTERNAL, LAYERS = "relation_internal", "app-structural-layerwise"
SINK, SPECTRUM = "app-structural-sink-profile", "app-structural-spectrum"
NLL, POWERS, MEMORY = "app-nll", "token-mixing-complexity", "app-prod-fr-fa"
SPEED, ABLATION = "efficient-relation", "app-ablation"
GOOD, PARTLY, BAD, OPEN = "reproduced", "direction only", "not reproduced", "not tested"
EMPTY = {"text": None, "low": math.nan, "high": math.nan, "n": 1, "status": "ok", "reason": ""}


def paper_cells() -> pd.DataFrame:
    """The cells of a setting that measured exactly the paper's values, on the paper's GPU."""
    rows = []
    for path in sorted(paper.FOLDER.glob("*.csv")):
        for row in paper.load(path.stem).to_dict("records"):
            text = row["paper"] if row["unit"] == "text" else None
            of = {"table": path.stem, "text": text, "value": row["paper_value"]}
            rows.append(EMPTY | row | of)
    for table in (SPEED, MEMORY, "app-linear-long"):
        rows.append(beyond(table, "setting", "device", text=GPU, unit="text"))
    rows += [beyond(SPEED, s, "fixed.context", value=1024.0) for s in paper.SCALES]
    for row, of_time, of_state in (("linear", 1.0, 0.0), ("full-flash", 2.0, 1.0)):
        ends = {"low": of_time - 0.05, "high": of_time + 0.05}
        rows.append(beyond(POWERS, row, "time_exponent", value=of_time, **ends))
        rows.append(beyond(POWERS, row, "state_exponent", value=of_state))
    return pd.DataFrame([row | {"by_seed": {}} for row in rows])


def beyond(table: str, row: str, column: str, **fields) -> dict:
    """A cell that the paper does not print."""
    cell = EMPTY | {"table": table, "row": row, "column": column, "statistic": "value"}
    return cell | {"paper": None, "paper_value": math.nan, "value": math.nan, "unit": "1"} | fields


def check(check: str, name: str, error: float = 1e-3, **fields) -> dict:
    row = {"check": check, "name": name, "scale": "", "operator": "definition", "precision": "fp64"}
    row |= {"measure": "largest", "length": 64, "error": error, "allowed": 2e-3, "source": "x#y"}
    return row | fields


def records(checks=None, variation: str = "base", planned=(), hybrid: int = 31_967_571):
    flash = {"operator": "flash", "precision": "bf16"}
    made = checks if checks is not None else [
        check("exactness", "Y", scale="10M", **flash),
        check("exactness", "dp1", scale="10M", **flash),
        check("identity", "first token"),
        check("identity", "first token", **flash),
        check("mixing", "keeps lengths"),
        check("recurrence", "C", operator="expanded"),
        check("recurrence", "dg", **flash),
        check("history", "no later token"),
    ]  # fmt: skip
    model = {"scale": "30M", "variant": "hybrid", "parameters": hybrid, **claims.HYBRID}
    return SimpleNamespace(
        setting=SimpleNamespace(variation=variation),
        checks=pd.DataFrame(made, columns=list(check("", ""))),
        models=pd.DataFrame([model]),
        planned=pd.DataFrame(planned, columns=["kind", "reason"]),
    )


PAPER = paper_cells()


def judged(cells: pd.DataFrame = PAPER, of=None) -> dict[int, claims.Judged]:
    return {one.claim.number: one for one in claims.judge(cells, of or records())}


def changed(table: str, row: str, column: str, value=None, statistic=None, **new) -> pd.DataFrame:
    """The paper's cells with some changed. `value` can be a function of the old value."""
    cells = PAPER.copy()
    at = cells["table"].str.fullmatch(table) & cells["row"].str.fullmatch(row)
    at &= cells["column"].str.fullmatch(column)
    at &= (cells["statistic"] == statistic) | (statistic is None)
    assert at.any(), (table, row, column)
    if callable(value):
        value = cells.loc[at, "value"].map(value)
    if value is not None:
        cells.loc[at, "value"] = value
    for name, text in new.items():
        cells[name] = [text if hit else old for hit, old in zip(at, cells[name], strict=True)]
    return cells


def gone(table: str, row: str = ".*", column: str = ".*", status="not run", reason="so it was"):
    """The paper's cells with some that have no value."""
    return changed(table, row, column, math.nan, text=None, status=status, reason=reason)


def with_checks(name: str, **fields) -> SimpleNamespace:
    """Records in which the checks of this name have other fields."""
    made = records()
    made.checks.loc[made.checks["name"] == name, list(fields)] = list(fields.values())
    return made


def test_the_papers_own_values_are_reproduced_wherever_the_tables_decide() -> None:
    by_claim = judged(PAPER[PAPER["table"] != POWERS], records(checks=[]))
    assert list(by_claim) == list(range(1, 25))
    verdicts = {number: one.verdict for number, one in by_claim.items()}
    wanted = {n: GOOD if n in TABLES_DECIDE else OPEN for n in verdicts}
    assert verdicts == wanted and all(one.reason for one in by_claim.values())
    assert {one.verdict for one in judged().values()} == {GOOD}


# Every part of every claim, with values at its bounds.
BOUNDS = [
    (1, BAD, NLL, "30M/mean", "delta", 0.1),
    (1, PARTLY, NLL, "10M/mean", "delta", -1.0),
    (2, BAD, NLL, "10M/44", "delta", 0.0),
    (3, BAD, "main-results", "100M", "token_reduction", -1.0),
    (3, PARTLY, "main-results", "100M", "token_reduction", 50.0),
    (4, BAD, ABLATION, "raw-x", "delta", -0.01),
    (4, GOOD, ABLATION, "raw-x", "delta", 0.0446),  # 0.9 of the paper's deviations away
    (4, PARTLY, ABLATION, "raw-x", "delta", 0.0456),
    (5, BAD, "app-configs", "10M", "params.full", 10_425_247.0),
    (5, PARTLY, "app-configs", "10M", "params.*", lambda count: count + 1),
    (6, BAD, INTERNAL, "30M", "l0_self.full", 1.0),
    (6, GOOD, INTERNAL, "30M", "l0_self.full", 23.808),  # within the rounding of both values
    (6, PARTLY, INTERNAL, "30M", "l0_self.full", 23.812),
    (7, BAD, INTERNAL, "30M", "l0_effrank.full", 100.0),
    (7, GOOD, INTERNAL, "10M", "l0_effrank.full", 406.3),  # within the rounding of the ratio
    (8, BAD, INTERNAL, "30M", "l1_self.full", 1.5),
    (9, BAD, INTERNAL, "30M", "l2_exchange.full", 97.12),
    (9, PARTLY, INTERNAL, "30M", "l2_exchange.full", 98.276),
    (10, BAD, INTERNAL, "30M", "beyond_128.full", 18.1),
    (10, BAD, INTERNAL, "30M", "beyond_256.full", 9.3),
    (10, BAD, INTERNAL, "30M", "beyond_512.full", 3.1),
    (11, BAD, SINK, "30M", "sink_1.full", 30.0),
    (11, BAD, SINK, "30M", "sink_32.full", 1.0),
    (12, BAD, SPEED, "10M", "fixed.speedup", 0.5),
    (12, PARTLY, SPEED, "10M", "fixed.speedup", 2.0),
    (13, BAD, SPEED, "10M", "matched.ratio", 0.89),
    (14, GOOD, MEMORY, "10M", "allocated.full", 5.243),
    (14, BAD, MEMORY, "10M", "allocated.full", 5.39),
    (16, BAD, POWERS, "linear", "time_exponent", 1.5),
    (16, BAD, POWERS, "linear", "state_exponent", 0.5),
    (16, PARTLY, POWERS, "linear", "state_exponent", 0.02),
    (16, BAD, POWERS, "full-flash", "state_exponent", 0.5),
    (17, BAD, "app-hybrid", "mean", "nll", 1.4),
    (19, BAD, SPECTRUM, "30M", "stable_rank.full", 18.9),
    (19, BAD, SPECTRUM, "30M", "effrank.full", 191.0),
    (19, BAD, SPECTRUM, "30M", "dims_90.full", 70.0),
    (19, BAD, SPECTRUM, "30M", "dims_95.full", 95.0),
    (19, BAD, SPECTRUM, "30M", "top_energy.full", 0.086),
    (20, BAD, LAYERS, "30M/L5", "self.full", 24.0),
    (20, BAD, LAYERS, "30M/L5", "effrank.full", 407.0),
    (20, BAD, LAYERS, "30M/L1", "self.full", 12.0),
    (20, BAD, LAYERS, "30M/L1", "self.mha", 0.05),
    (21, BAD, "app-linear-long", "32768", "status", "OOM"),
    (21, BAD, "app-linear-long", "65536", "status", "PASS"),
]


@pytest.mark.parametrize("number, verdict, table, row, column, new", BOUNDS)
def test_a_bound_lies_where_the_rule_says(number, verdict, table, row, column, new) -> None:
    words = isinstance(new, str)
    cells = changed(table, row, column, **{"text" if words else "value": new})
    claim = judged(cells)[number]
    assert claim.verdict == verdict and claim.reason
    assert bool(claim.not_established) == (number == 2)  # few pairs have a wide interval


@pytest.mark.parametrize(
    "number, name, error",
    [(15, "dp1", 1.0), (15, "dp1", math.nan), (18, "first token", 0.1), (22, "keeps lengths", 0.1),
     (23, "dg", 0.1), (24, "no later token", 0.1)],
)  # fmt: skip
def test_an_error_beyond_its_bound_fails(number: int, name: str, error: float) -> None:
    assert judged(of=with_checks(name, error=error))[number].verdict == BAD


def test_another_number_of_parameters_fails() -> None:
    assert judged(of=records(hybrid=31_967_570))[17].verdict == BAD
    assert judged()[17].evidence[0].note == ""  # an existing count is not called missing
    mini = records(hybrid=1234)
    mini.models["d_model"] = 32
    claim = judged(of=mini)[17]
    assert claim.verdict == OPEN and "d_model is 32, the paper's 480" in claim.reason


TIME = POWERS, "linear", "time_exponent"
UNDECIDED = "it holds for 10M, 30M; undecided: 100M (so it was)"


@pytest.mark.parametrize("number, verdict, said, cells", [
    # A part that the claim needs is missing.
    (2, OPEN, "so it was", partial(gone, NLL, "100M/4[23]", "delta")),
    (4, OPEN, "so it was", partial(gone, ABLATION, "no-givens")),
    (16, OPEN, "so it was", partial(gone, *TIME)),
    (17, OPEN, "so it was", partial(gone, "app-hybrid")),
    (21, OPEN, "so it was", partial(gone, "app-linear-long", "16384")),
    # A scale that failed is not one that was left out.
    (1, OPEN, UNDECIDED, partial(gone, NLL, "100M/.*", status="failed")),
    (1, OPEN, UNDECIDED, partial(gone, NLL, "100M/.*", status="oom")),
    (1, GOOD, "without 100M: so it was", partial(gone, NLL, "100M/.*")),
    # Another context, other batches.
    (12, OPEN, "not 1024", partial(changed, SPEED, ".*", "fixed.context", 512.0)),
    (13, GOOD, "16/4, not 32/4", partial(changed, MEMORY, "10M", "micro_ga.mha", text="16/4")),
    (14, GOOD, "16/4, not 32/4", partial(changed, MEMORY, "10M", "micro_ga.mha", text="16/4")),
    # A power of time is met near the paper's, or if the interval holds it.
    (16, GOOD, "", partial(changed, *TIME, 1.16, low=0.99, high=1.21)),
    (16, PARTLY, "", partial(changed, *TIME, 1.16, low=1.11, high=1.21)),
])  # fmt: skip
def test_a_part_that_is_missing_or_was_measured_otherwise(number, verdict, said, cells) -> None:
    claim = judged(cells())[number]
    assert claim.verdict == verdict and said in claim.reason


def test_nothing_that_was_not_made_is_tested() -> None:
    verdicts = judged(of=records([], planned=[("checks", "the GPU was taken")]))
    for number in CHECKED:
        claim = verdicts[number]
        assert claim.verdict == OPEN and "GPU was taken" in claim.reason
    empty = PAPER.assign(value=math.nan, text=None, status="not run", n=0, reason="not run")
    assert all(one.verdict == OPEN for n, one in judged(empty).items() if n < 15)


def test_only_the_kernel_speaks_for_the_kernel() -> None:
    made = with_checks("Y", operator="tiled")
    made.checks.loc[made.checks["name"] == "dp1", "operator"] = "tiled"
    claim = judged(of=made)[15]
    assert claim.verdict == OPEN and "not the kernel" in claim.reason
    made.checks.loc[made.checks["name"] == "dp1", "error"] = 1.0
    assert judged(of=made)[15].verdict == BAD


@pytest.mark.parametrize("drop, lost, verdict", [
    ([], ["10M/42"], GOOD),
    ([], ["10M/42", "30M/43"], BAD),
    (["10M/42"], ["30M/42"], OPEN),
    (["10M/42", "100M/43"], [], OPEN),
    (["10M/42", "100M/43"], ["30M/42", "30M/43"], BAD),
])  # fmt: skip
def test_missing_pairs_leave_the_wins_open_only_where_they_matter(drop, lost, verdict) -> None:
    cells = PAPER.copy()
    of_pairs = (cells["table"] == NLL) & (cells["column"] == "delta")
    cells.loc[of_pairs, "value"] = -0.1
    cells.loc[of_pairs & cells["row"].isin(lost), "value"] = 0.1
    cells.loc[of_pairs & cells["row"].isin(drop), ["value", "status"]] = [math.nan, "not run"]
    claim = judged(cells)[2]
    assert claim.verdict == verdict
    assert (claim.evidence[0].n, claim.evidence[0].ours) == (9 - len(drop), 9 - len(drop + lost))
    # Each of these shares is compatible with one pair lost in nine.
    assert bool(claim.not_established) == (verdict != OPEN)
    won, n = int(claim.evidence[0].ours), claim.evidence[0].n
    low, high = scipy.stats.beta.ppf([0.025, 0.975], [won, won + 1], [n - won + 1, n - won])
    interval = f"95% interval of the share won: {low:.0%} to {1 if won == n else high:.0%}"
    assert (interval in claim.evidence[0].note) == (verdict != OPEN)
    cells.loc[of_pairs, "value"] = 0.1
    assert judged(cells)[2].verdict == BAD and not judged(cells)[2].not_established


def test_a_loss_that_is_never_reached_spares_no_tokens() -> None:
    for seeds, verdict in (("42", PARTLY), ("4[23]", BAD)):
        cells = gone("app-token-efficiency", f"100M/{seeds}", "reduction", "not reached")
        assert judged(cells)[3].verdict == verdict
    cells = gone("app-token-efficiency", "100M/42", "reduction", "not reached")
    cells.loc[cells["row"] == "100M/43", "value"] = math.nan  # one of the two that ended
    assert judged(cells)[3].verdict == BAD


def test_other_models_texts_and_devices_test_nothing_of_the_papers() -> None:
    mini = judged(changed("app-configs", ".*", "geometry", text="2/16/2x8/32"))
    for number, one in mini.items():
        paper_models = number in TABLES_DECIDE
        assert one.verdict == (OPEN if paper_models else GOOD), number
    assert "geometry of 10M is 2/16/2x8/32, the paper's 6/384" in mini[1].reason
    short = judged(changed("app-configs", ".*", "tokens", text="1M"))
    assert short[1].verdict == short[9].verdict == OPEN
    assert short[5].verdict == short[13].verdict == GOOD
    assert judged(changed("app-configs", "30M", "data", text="Books"))[17].verdict == OPEN
    for device, verdict in (("NVIDIA H200", GOOD), ("CPU (x86_64)", OPEN)):
        verdicts = judged(changed(".*", ".*", "device", text=device))
        assert {verdicts[n].verdict for n in (12, 13, 14)} == {verdict}
        assert verdicts[21].verdict == OPEN


def test_flow_of_relation_without_that_of_mha_decides_nothing() -> None:
    cells = gone(INTERNAL, "100M", "l[012]_(self|effrank).(mha|ratio)")
    cells.loc[(cells["row"] == "100M") & (cells["column"] == "l2_exchange.full"), "value"] = 10.0
    verdicts = judged(cells)
    assert verdicts[9].verdict == GOOD and "MHA of 100M: so it was" in verdicts[9].reason


def test_layers_that_chose_a_reading_do_not_test_the_paper() -> None:
    cells = changed(INTERNAL, "30M", "l1_self.full", 2.0)
    verdicts = judged(cells, records(variation=claims.CHOSEN_VARIATION))
    chosen = {n for n, one in verdicts.items() if one.verdict == "chose the setting"}
    assert chosen == {6, 7, 8, 10, 11, 19, 20}
    assert verdicts[8].reason.endswith("its rule alone would give: not reproduced")
    assert verdicts[9].verdict == GOOD
    missing = judged(gone(INTERNAL), records(variation=claims.CHOSEN_VARIATION))
    assert missing[8].verdict == OPEN


def pairs(*deltas: float) -> Term:
    seeds = dict(zip(paper.SEEDS, deltas, strict=False))
    mean = sum(deltas) / len(deltas)
    return Term(-0.0412, 5e-5, "nat/token", mean, seeds, n=len(deltas), status="ok", reason="")


def test_an_interval_that_holds_the_contrary_establishes_nothing() -> None:
    for deltas, open_ in (((0.0051, -0.0144, -0.0106), True), ((-0.03, -0.031, -0.032), False)):
        row = compare("10M", "NLL", pairs(*deltas), below(0))
        assert row.direction and row.contested == open_ and ("contradict" in row.note) == open_
    assert row.high == pytest.approx(stats.mean([-0.03, -0.031, -0.032]).high)
    assert row.size is False and compare("10M", "NLL", pairs(-0.02, -0.04, -0.09), below(0)).size
    alone = compare("10M", "NLL", pairs(-0.04), below(0))
    assert alone.contested and alone.low is None and "one seed has no interval" in alone.note
    assert alone.size is None and compare("10M", "NLL", pairs(-0.0412), below(0)).size


def test_a_loss_that_one_seed_never_reaches_is_not_established() -> None:
    for n, open_ in ((1, "100M"), (3, "")):
        cells = gone("main-results", "100M", "token_reduction", status="not reached")
        cells.loc[cells["status"] == "not reached", "n"] = n
        claim = judged(cells)[3]
        assert (claim.verdict, claim.not_established) == (BAD, open_)


def test_differences_are_of_pairs_and_ratios_of_means() -> None:
    over = Term(2.0, 0.05, "1", 3.0, {42: 1.0, 43: 5.0}, n=2, status="ok", reason="")
    under = Term(1.0, 0.05, "1", 2.0, {43: 2.0, 44: 2.0}, n=2, status="ok", reason="")
    assert (over - under).by_seed == {43: 3.0} and (over - under).value == 3.0
    assert (over - under).n == 1
    lower = judged(changed(NLL, "10M/mean", "delta", -0.051168))
    assert lower[1].evidence[0].difference == pytest.approx(-0.01)
    assert lower[2].evidence[0].difference is None  # a count out of nine
    assert (over / under).value == 2.5 and (over / under).paper == 2.0
    other = Term(1.0, 0.05, "1", 2.0, {45: 2.0}, n=1, status="ok", reason="")
    assert (over - other).value is None and (over - other).reason == "no seed has both"
    zero = Term(1.0, 0.05, "1", 0.0, {43: 0.0}, n=1, status="ok", reason="")
    assert (over / zero).value is None


def row(label: str, direction: bool, contested: bool = False, **fields) -> Evidence:
    fields |= {"asks_size": False, "direction": direction, "contested": contested}
    return Evidence(label, "NLL", **fields)


@pytest.mark.parametrize("rows, verdict, not_established", [
    ([row("a", True, True), row("b", True)], GOOD, "a"),
    ([row("a", False, True), row("b", True, True)], BAD, "a"),
    ([row("a", False, True), row("b", False)], BAD, ""),
    ([row("a", True), row("b", False, informative=True)], GOOD, ""),
    ([row("b", False, informative=True)], OPEN, ""),
])  # fmt: skip
def test_the_verdict_of_several_rows(rows, verdict: str, not_established: str) -> None:
    assert outcome(rows)[::2] == (verdict, not_established)


def test_rows_beside_a_claim_count_for_nothing() -> None:
    further = {"n": 28, "by_seed": {}, "low": 0.01, "high": 0.03}
    more = [
        beyond(NLL, "10M/further", "further.planned", value=28.0),
        beyond(NLL, "10M/further", "further.delta", value=0.02, **further),
    ]
    cells = pd.concat([PAPER, pd.DataFrame([{"by_seed": {}} | one for one in more])])
    claim = judged(cells)[1]
    (shown,) = (one for one in claim.evidence if one.informative)
    assert claim.verdict == GOOD and shown.label == "10M, further pairs"
    assert shown.ours == 0.02 and shown.direction is None and "28 of 28 pairs" in shown.note
