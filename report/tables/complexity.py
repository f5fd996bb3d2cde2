"""Powers of T fitted to measured time and decode state: Table 1."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from relation.variants import VARIANTS
from report import stats
from report.data import OPERATORS
from report.table import Cells, cell, table
from report.tables.systems import condition_cells, failure

NAMES = {**OPERATORS, "mha": "MHA / FlashAttention", "full": "Full / FlashRelation"}
NAMES |= {f"decode-{name}": f"{variant.title}, decoding" for name, variant in VARIANTS.items()}
# The model of the benchmark `decode` for each operator. Separate kernels decode tokens, so the
# materialised backend has no model there.
DECODES = {"mha": "mha", "full-flash": "full", "linear": "linear"}
ROWS = {"mha": ("mha",), "full": ("full-flash", "full-reference"), "linear": ("linear",)}
# A fit uses times of at least GROWN times the smallest T's, at FEWEST_POINTS contexts or more.
GROWN, FEWEST_POINTS = 5, 3
# A wider 95% interval cannot tell neighbouring powers of T apart.
WIDEST_INTERVAL = 1.0


@table("1", "token-mixing-complexity", "Token-mixing complexity", names=NAMES,
       rows={"Fitted powers of T": OPERATORS})  # fmt: skip
def complexity_table(
    complexity: pd.DataFrame, decode: pd.DataFrame, precision: Sequence[str]
) -> Cells:
    """Cost of the token-mixing core, the sequential operations of its direct form, and the history
    it keeps while decoding. We time forward and backward of one layer's operator on one sequence,
    and fit a power of T (log time on log T, with its 95% interval) to the points that take at least
    five times as long as the smallest T. With fewer than three such points, or an interval wider
    than 1, the power is undetermined. Decode state is the size of the tensors that the next token
    needs. Decoding times are of the whole model, for one token at batch 1, at the first and the
    last T. Many rows: the largest batch that was tried."""
    powers = {}  # by operator and column
    for operator in OPERATORS:
        rows = complexity.query("operator == @operator").sort_values("context")
        if len(rows):
            powers |= {(operator, each["column"]): each for each in _exponents(operator, rows)}
            yield from _decode_cells(operator, rows, decode)
    yield from powers.values()
    for row, candidates in ROWS.items():
        why = "a property of the algorithm; nothing is measured for it"
        yield cell(row, "sequential", status="no counterpart", reason=why)
        for column, quantity in (("complexity", "time_exponent"), ("state", "state_exponent")):
            measured = [powers[name, quantity] for name in candidates if (name, quantity) in powers]
            # From the first operator that has a power; else the first operator's reason.
            measured.sort(key=lambda power: power["status"] != "ok")
            if measured:
                yield _in_words(row, column, measured[0])
    for model, tokens in decode.query("measure == 'token'").groupby("model", sort=False):
        yield from _batch_cells(f"decode-{model}", tokens)
    yield from condition_cells(complexity, precision)
    failed = complexity.query("status == 'OOM'").sort_values("context")
    failures = [
        f"{OPERATORS[operator]} at T = {', '.join(f'{T:,.0f}' for T in contexts)}"
        for operator, contexts in failed.groupby("operator", sort=False)["context"]
    ]
    if failures:
        yield cell("setting", "oom", text="; ".join(failures), of=complexity)


def _exponents(operator: str, rows: pd.DataFrame) -> Cells:
    """Yield powers of T fitted to an operator's times and to its decode state. rows: by context.

    The fit uses only times of at least GROWN times the smallest T's. Shorter times contain a large
    part that does not depend on T, such as launches.
    """
    passed = rows[rows["seconds"].notna()]
    grew = passed["seconds"] / passed["seconds"].iloc[:1].sum()
    fitted = passed[grew >= GROWN]
    time = stats.power_fit(fitted["context"], fitted["seconds"])
    missing = {"status": "undetermined"}
    if passed.empty:
        missing = failure(rows.iloc[0])
    elif (count := fitted["context"].nunique()) < FEWEST_POINTS:
        missing["reason"] = (
            f"a power is fitted to {FEWEST_POINTS} contexts or more that take {GROWN} times as "
            f"long as the smallest; {count} do, and the largest takes {grew.iloc[-1]:.1f} times as "
            "long"
        )
    elif time.high - time.low > WIDEST_INTERVAL:
        ends = f"{time.low:.2f} to {time.high:.2f}"
        why = f"the fitted power's 95% interval, {ends}, is wider than {WIDEST_INTERVAL:g}"
        missing["reason"] = why
    if "reason" in missing:
        for column in ("time_exponent", "contexts"):
            yield cell(operator, column, of=rows, **missing)
    else:
        yield cell(operator, "time_exponent", time, of=rows)
        yield cell(operator, "contexts", text=_range(fitted["context"]), of=rows)
    state = rows[rows["decode_state_bytes"].astype(float) > 0]
    fit = stats.power_fit(state["context"], state["decode_state_bytes"])
    if fit is not None:  # bytes have no noise, so there is no interval
        yield cell(operator, "state_exponent", fit.value, n=fit.n, of=rows)


def _decode_cells(operator: str, rows: pd.DataFrame, decode: pd.DataFrame) -> Cells:
    """Yield the time to decode one token at the first and the last context.

    It comes from the benchmark `decode`; in campaigns older than that, from `complexity`.
    """
    why = "timed by the benchmark complexity, launches included, before decoding had its own"
    if len(decode):
        why = ""
        rows = decode[decode["model"] == DECODES.get(operator)]
        rows = rows.query("measure == 'token' and batch == 1")
        rows = rows.assign(decode_seconds=rows["seconds"])
    rows = rows[rows["decode_seconds"].notna()].sort_values("context")
    columns = {"decode_first": rows[:1], "decode_last": rows[-1:]}
    if len(rows):
        for column, row in columns.items():
            yield cell(operator, column, row["decode_seconds"].item(), of=row, reason=why)
        yield cell(operator, "decoded", text=_range(rows["context"]), of=rows)
    elif len(decode) and operator not in DECODES:
        why = "other kernels decode, not this backend"
        for column in (*columns, "decoded"):
            yield cell(operator, column, status="no counterpart", reason=why)


def _batch_cells(row: str, tokens: pd.DataFrame) -> Cells:
    """Yield decoding time and rate of a model's largest batch at its first and last context."""
    rows = tokens[tokens["batch"] == tokens["batch"].max()].sort_values("context")
    yield cell(row, "rows", float(rows["batch"].iloc[0]), of=rows)
    for end, at in (("first", rows.iloc[0]), ("last", rows.iloc[-1])):
        for column, field in (("many", "seconds"), ("rate", "tokens_per_second")):
            result = {"value": float(at[field])} if at["status"] == "PASS" else failure(at)
            yield cell(row, f"{column}_{end}", of=rows, **result)
    yield cell(row, "bytes", float(rows["state_bytes"].iloc[-1]) / 2**30, of=rows)
    yield cell(row, "many_at", text=_range(rows["context"]), of=rows)


def _in_words(row: str, column: str, exponent: dict[str, Any]) -> dict[str, Any]:
    """Return a fitted power of T as text, in the paper's notation."""
    if exponent["status"] != "ok":
        return exponent | {"row": row, "column": column}
    power = f"T^{round(exponent['value'], 2) + 0.0:.2f}".replace("-", "−")
    why = f"fitted to {exponent['n']} contexts of {exponent['row']}"
    return cell(row, column, text=power, reason=why, sources=exponent["sources"])


def _range(contexts: pd.Series) -> str:
    return f"{contexts.min():.0f} to {contexts.max():.0f}"
