"""Powers of T fitted to measured time and decode state: Table 1."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from relation.variants import VARIANTS
from report import stats
from report.table import Cells, cell, sources, table
from report.tables.systems import conditions, outcome, select

OPERATORS = {
    "mha": "MHA",
    "full-reference": "Full, materialised",
    "full-flash": "FlashRelation",
    "linear": "Linear Relation",
}
NAMES = {**OPERATORS, "mha": "MHA / FlashAttention", "full": "Full / FlashRelation"}
NAMES |= {f"decode-{name}": f"{variant.title}, decoding" for name, variant in VARIANTS.items()}
# The model of the benchmark `decode` whose tokens an operator's are: kernels of their own decode
# them, so that the materialised backend has none.
DECODES = {"mha": "mha", "full-flash": "full", "linear": "linear"}
ROWS = {"mha": ("mha",), "full": ("full-flash", "full-reference"), "linear": ("linear",)}
# An exponent is fitted where time is so many times that of the smallest T, to so many contexts.
GROWN, FEWEST_POINTS = 5, 3
# A wider 95% interval holds two powers of T at once and tells them not apart.
WIDEST_INTERVAL = 1.0


def fitted_time(rows: pd.DataFrame) -> tuple[stats.Estimate | None, pd.Series, str]:
    """The power of T fitted to an operator's times, the T that it is fitted to; or None, and why.

    Fitted are times of at least GROWN times that of the smallest T: below that, what does not
    depend on T, such as launching kernels, is a part of them. No reason where nothing was measured.
    """
    passed = rows[rows["seconds"].notna()].sort_values("context")
    grew = passed["seconds"] / passed["seconds"].iloc[:1].sum()
    timed = passed[grew >= GROWN]
    why, count = "", timed["context"].nunique()
    if len(passed) and count < FEWEST_POINTS:
        why = (
            f"a power is fitted to {FEWEST_POINTS} contexts or more that take {GROWN} times as "
            f"long as the smallest; {count} do, and the largest takes {grew.iloc[-1]:.1f} times as "
            "long"
        )
    elif len(passed):
        fit = stats.power_fit(timed["context"].tolist(), timed["seconds"].tolist())
        if fit.high - fit.low <= WIDEST_INTERVAL:
            return fit, timed["context"], ""
        ends = f"{fit.low:.2f} to {fit.high:.2f}"
        why = f"the fitted power's 95% interval, {ends}, is wider than {WIDEST_INTERVAL:g}"
    return None, timed["context"], why


def decoded_tokens(complexity: pd.DataFrame, decode: pd.DataFrame, operator: str) -> pd.DataFrame:
    """The times of one row's token by context, as `decode_seconds` with its interval.

    Of the benchmark `decode`; in a campaign from before there was one, of the complexity's rows.
    """
    rows = select(complexity, operator=operator)
    if len(decode):
        rows = select(decode, model=DECODES.get(operator), measure="token", batch=1)
        names = ("seconds", "seconds_low", "seconds_high")
        rows = rows.rename(columns={name: f"decode_{name}" for name in names})
    return rows[rows["decode_seconds"].notna()].sort_values("context")


@table("1", "token-mixing-complexity", "Token-mixing complexity", names=NAMES,
       rows={"Fitted powers of T": OPERATORS})  # fmt: skip
def complexity_table(
    complexity: pd.DataFrame, decode: pd.DataFrame, precision: Sequence[str]
) -> Cells:
    """Cost of the token-mixing core, the sequential operations of its direct form, and the
    history it keeps while decoding. Ours are powers of T fitted to the points whose time is at
    least five times that of the smallest T, with the 95% interval of the fit of log time on log T;
    timed are forward and backward of one layer's operator on one sequence. Fewer than three such
    points, or an interval wider than 1, leave a power undetermined. Decode state is the size of
    the tensors that the next token needs; a token is decoded by the whole model, batch 1, at the
    first and the last T. Many rows are the largest batch asked for."""
    powers = []
    for operator in OPERATORS:
        rows = select(complexity, operator=operator).sort_values("context")
        if len(rows):
            powers += _exponents(operator, rows)
            yield from _tokens(operator, complexity, decode)
    yield from powers
    for row, candidates in ROWS.items():
        why = "a property of the algorithm; nothing is measured for it"
        yield cell(row, "sequential", status="no counterpart", reason=why, n=0)
        of_row = [each for name in candidates for each in powers if each["row"] == name]
        for column, quantity in (("complexity", "time_exponent"), ("state", "state_exponent")):
            yield from _power(row, column, [c for c in of_row if c["column"] == quantity])
    for model, own in select(decode, measure="token").groupby("model", sort=False):
        yield from _many(f"decode-{model}", own)
    yield from conditions(complexity, precision)
    failed = select(complexity, status="OOM").sort_values("context")
    if len(failed):
        told = [
            f"{OPERATORS[operator]} at T = {', '.join(f'{T:,.0f}' for T in contexts)}"
            for operator, contexts in failed.groupby("operator", sort=False)["context"]
        ]
        yield cell("setting", "oom", text="; ".join(told), sources=sources(complexity))


def _exponents(operator: str, rows: pd.DataFrame) -> Cells:
    behind: dict[str, Any] = {"sources": sources(rows)}
    time, contexts, why = fitted_time(rows)
    if time is not None:
        yield cell(operator, "time_exponent", time, **behind)
        yield cell(operator, "contexts", text=_range(contexts), **behind)
    else:
        undetermined = {"status": "undetermined", "reason": why, "n": 0}
        known = behind | (undetermined if why else outcome(rows.iloc[0].to_dict()))
        yield from (cell(operator, column, **known) for column in ("time_exponent", "contexts"))
    state = rows[rows["decode_state_bytes"].astype(float) > 0]
    fit = stats.power_fit(state["context"].tolist(), state["decode_state_bytes"].tolist())
    if fit is not None:  # bytes have no noise, and so no interval
        yield cell(operator, "state_exponent", fit.value, n=fit.n, **behind)


def _tokens(operator: str, complexity: pd.DataFrame, decode: pd.DataFrame) -> Cells:
    """The time to decode one token at the first and the last context."""
    rows = decoded_tokens(complexity, decode, operator)
    if len(rows):
        for column, row in (("decode_first", rows.iloc[0]), ("decode_last", rows.iloc[-1])):
            yield cell(operator, column, float(row["decode_seconds"]), sources=(row["source"],))
        yield cell(operator, "decoded", text=_range(rows["context"]), sources=sources(rows))
    elif len(decode) and operator not in DECODES:
        why = "a token is decoded by kernels of its own, not by this backend"
        known = {"status": "no counterpart", "reason": why, "n": 0}
        columns = ("decode_first", "decode_last", "decoded")
        yield from (cell(operator, column, **known) for column in columns)


def _many(row: str, own: pd.DataFrame) -> Cells:
    """Tokens of the largest batch of one model at its first and its last context."""
    rows = select(own, batch=own["batch"].max()).sort_values("context")
    behind: dict[str, Any] = {"sources": sources(rows)}
    yield cell(row, "rows", float(rows["batch"].iloc[0]), **behind)
    for end, at in (("first", rows.iloc[0].to_dict()), ("last", rows.iloc[-1].to_dict())):
        for column, field in (("many", "seconds"), ("rate", "tokens_per_second")):
            known = {"value": float(at[field])} if at["status"] == "PASS" else outcome(at)
            yield cell(row, f"{column}_{end}", **behind, **known)
    yield cell(row, "bytes", float(rows["state_bytes"].iloc[-1]) / 2**30, **behind)
    yield cell(row, "many_at", text=_range(rows["context"]), **behind)


def _power(row: str, column: str, exponents: Sequence[dict[str, Any]]) -> Cells:
    """The fitted power of T, in words, of the first operator that has one."""
    for each in sorted(exponents, key=lambda exponent: exponent["status"] != "ok")[:1]:
        found = each | {"row": row, "column": column, "value": math.nan, "n": 1}
        found |= dict.fromkeys(("low", "high"), math.nan)
        if each["status"] == "ok":
            power = f"T^{round(each['value'], 2) + 0.0:.2f}".replace("-", "−")
            found |= {"text": power, "reason": f"fitted to {each['n']} contexts of {each['row']}"}
        yield found


def _range(contexts: pd.Series) -> str:
    return f"{contexts.min():.0f} to {contexts.max():.0f}"
