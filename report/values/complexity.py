"""Powers of T fitted to measured time and decode state (Table 1)."""

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from relation.pipeline.systems import DECODED
from relation.variants import VARIANTS
from report.values.conditions import put_retention, put_setting, setting_notes
from report.values.frames import CampaignRecords
from report.values.layout import Column, Needs, Number, Panel, Part, Row, Table, Words, value
from report.values.measured import (
    Measured,
    Measurements,
    absent,
    is_number,
    no_counterpart,
    select,
    worded,
)
from report.values.numbers import MINUS
from report.values.side_rates import failed
from report.values.statistics import PowerFit, power_fit
from report.values.style import OPERATOR_NAME

OPERATORS = ("mha", "full-reference", "full-flash", "linear")
# The model of the benchmark `decode` whose tokens an operator's are. Kernels of their own decode
# them, so that the materialised backend has none.
_DECODES = {"mha": "mha", "full-flash": "full", "linear": "linear"}
# An exponent is fitted where time is so many times that of the smallest T, to so many contexts.
GROWN, FEWEST_POINTS = 5, 3
# A wider 95% interval holds two powers of T at once and tells them not apart.
WIDEST_INTERVAL = 1.0


def grown(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of one operator whose time is at least GROWN times that of its smallest T.

    Below that, what does not depend on T, such as launching kernels, is a part of the time.
    """
    passed = rows[rows["seconds"].notna()].sort_values("context")
    if passed.empty:
        return passed
    return passed[passed["seconds"] >= GROWN * passed["seconds"].iloc[0]]


def complexity(records: CampaignRecords) -> Measurements:
    """Table 1, beside exponents fitted to the measured time and decode state against T."""
    found = Measurements()
    for operator in OPERATORS:
        rows = select(records.complexity, operator=operator).sort_values("context")
        none = absent(records, ("complexity",), variants=_names(operator))
        tokens, no_token = decoded_tokens(records, operator), _no_token(records, operator, none)
        time, why = fitted_time(rows)
        undetermined = none
        if not rows.empty:
            undetermined = Measured(status="undetermined", reason=why) if why else failed(rows)
        state = _fit(rows, "decode_state_bytes")
        # Bytes have no noise, and so no interval.
        _put_fit(found, operator, "time_exponent", time, undetermined)
        _put_fit(found, operator, "state_exponent", state and replace(state, low=None), none)
        columns = {
            "contexts": undetermined if time is None else _range(grown(rows)["context"], none),
            "decode_first": _token(tokens.head(1), no_token),
            "decode_last": _token(tokens.tail(1), no_token),
            "decoded": _range(tokens["context"], no_token),
        }
        found.put(operator, columns)
    _put_many(found, records)
    for row, candidates in (
        ("mha", ("mha",)),
        ("full", ("full-flash", "full-reference")),
        ("linear", ("linear",)),
    ):
        columns = {
            "sequential": no_counterpart("a property of the algorithm; nothing is measured for it"),
            "complexity": _power(found, candidates, "time"),
            "state": _power(found, candidates, "state"),
        }
        found.put(row, columns)
    put_setting(found, records.complexity, records.page)
    put_retention(found, records, records.complexity)
    for column, names in (("oom", _out_of_memory(records)), ("flat", _flat(records))):
        told = "; ".join(names)
        if told:
            found["setting", column, "value"] = worded(told)
    return found


def _out_of_memory(records: CampaignRecords) -> Iterable[str]:
    """The operators that ran out of memory, each with its contexts."""
    failures = select(records.complexity, status="OOM")
    for operator, rows in failures.groupby("operator", sort=False):
        contexts = ", ".join(f"{context:,.0f}" for context in sorted(rows["context"]))
        yield f"{OPERATOR_NAME[operator]} at T = {contexts}"


def _flat(records: CampaignRecords) -> Iterable[str]:
    """The operators of whose decoding on a GPU no trend with T is resolved.

    That is, the 95% intervals of the times at the first and at the last T overlap.
    """
    for operator in OPERATORS:
        rows = decoded_tokens(records, operator)
        rows = rows.dropna(subset=["decode_seconds_low", "decode_seconds_high"])
        if len(rows) < 2 or "cpu" in rows["device"].iloc[0].lower():
            continue
        low, high = rows["decode_seconds_low"], rows["decode_seconds_high"]
        if low.iloc[-1] <= high.iloc[0] and low.iloc[0] <= high.iloc[-1]:
            yield OPERATOR_NAME[operator]


def fitted_time(rows: pd.DataFrame) -> tuple[PowerFit | None, str]:
    """The power of T fitted to the times of one operator; or None, and why it is undetermined.

    The reason is empty where no time was measured at all.
    """
    passed = rows[rows["seconds"].notna()].sort_values("context")
    if passed.empty:
        return None, ""
    timed = grown(rows)
    points = timed["context"].nunique()
    if points < FEWEST_POINTS:
        grew = passed["seconds"].iloc[-1] / passed["seconds"].iloc[0]
        return None, (
            f"a power is fitted to {FEWEST_POINTS} contexts or more that take {GROWN} times as "
            f"long as the smallest; {points} do, and the largest takes {grew:.1f} times as long"
        )
    fit = _fit(timed, "seconds")
    if fit.high - fit.low > WIDEST_INTERVAL:
        return None, (
            f"the 95% interval of the fitted power, {fit.low:.2f} to {fit.high:.2f}, is wider "
            f"than {WIDEST_INTERVAL:g}"
        )
    return fit, ""


def _range(contexts: pd.Series, none: Measured) -> Measured:
    if contexts.empty:
        return none
    return worded(f"{contexts.min():.0f} to {contexts.max():.0f}")


def decoded_tokens(records: CampaignRecords, operator: str) -> pd.DataFrame:
    """The times of one row's token by context, as `decode_seconds` with its interval.

    Of the benchmark `decode`; in a campaign from before there was one, of the complexity's rows.
    """
    rows = select(records.complexity, operator=operator)
    if not records.decode.empty:
        rows = select(records.decode, model=_DECODES.get(operator), measure="token", batch=1)
        ends = ("seconds", "seconds_low", "seconds_high")
        rows = rows.rename(columns={name: f"decode_{name}" for name in ends})
    return rows[rows["decode_seconds"].notna()].sort_values("context")


def _no_token(records: CampaignRecords, operator: str, none: Measured) -> Measured:
    """What stands for the time of an operator's token where there is none."""
    if not records.decode.empty and operator not in _DECODES:
        return no_counterpart("a token is decoded by kernels of its own, not by this backend")
    rows = select(records.complexity, operator=operator)
    failures = rows["decode_reason"].dropna()
    if len(failures):
        return Measured(status="failed", reason=str(failures.iloc[0]))
    return none if rows.empty else absent(records, ("decode",))


def _token(decoded: pd.DataFrame, none: Measured) -> Measured:
    """The time to decode one token at the one context of ``decoded``, if any was decoded."""
    if decoded.empty:
        return none
    row = decoded.iloc[0]
    return Measured(float(row["decode_seconds"]), unit="ms", n=1, sources=(row["source"],))


def _put_many(found: Measurements, records: CampaignRecords) -> None:
    """Tokens of the largest batch, a row a model; nothing where the campaign decodes no batch."""
    for model, own in select(records.decode, measure="token").groupby("model", sort=False):
        rows = select(own, batch=own["batch"].max()).sort_values("context")
        ends = {"first": rows.iloc[0], "last": rows.iloc[-1]}
        columns = {"rows": Measured(float(rows["batch"].iloc[0]), n=1)}
        columns |= {f"many_{end}": _of_many(row, "seconds", "ms") for end, row in ends.items()}
        columns |= {
            f"rate_{end}": _of_many(row, "tokens_per_second", "tok/s") for end, row in ends.items()
        }
        state = float(ends["last"]["state_bytes"]) / 2**30
        columns["bytes"] = Measured(state, unit="GiB", n=1, sources=(ends["last"]["source"],))
        found.put(
            f"decode-{model}",
            columns | {"many_at": _range(rows["context"], columns["rows"])},
        )


def _of_many(row: pd.Series, field: str, unit: str) -> Measured:
    """A row's number, or why it has none."""
    if row["status"] != "PASS":
        status = "oom" if row["status"] == "OOM" else "failed"
        return Measured(status=status, reason=str(row["reason"]), sources=(row["source"],))
    return Measured(float(row[field]), unit=unit, n=1, sources=(row["source"],))


def _names(operator: str) -> tuple[str, ...]:
    """How the list of missing pieces may name an operator: by benchmark, in full, by variant."""
    return tuple(dict.fromkeys(("complexity", operator, operator.split("-")[0])))


def _fit(rows: pd.DataFrame, field: str) -> PowerFit | None:
    kept = rows[(rows[field].astype(float) > 0) & rows[field].map(is_number).astype(bool)]
    return power_fit(kept[["context", field]].astype(float).to_numpy().tolist())


def _put_fit(
    found: Measurements, row: str, column: str, fit: PowerFit | None, none: Measured
) -> None:
    """A fitted exponent, with its interval where it has one."""
    if fit is None:
        found.put(row, {column: none})
        return
    numbers = {"value": fit.exponent}
    if fit.low is not None:
        numbers |= {"low": fit.low, "high": fit.high}
    known = {name: Measured(number, n=fit.points) for name, number in numbers.items()}
    found.put_statistics(row, column, known)


def _power(found: Measurements, operators: Iterable[str], quantity: str) -> Measured:
    """The fitted power of T, in words, of the first of ``operators`` that was measured."""
    cells = [found[operator, f"{quantity}_exponent", "value"] for operator in operators]
    for operator, cell in zip(operators, cells, strict=True):
        if cell.value is not None:
            return worded(
                f"T^{round(cell.value, 2) + 0.0:.2f}".replace("-", MINUS),
                reason=f"fitted to {cell.n} contexts of {operator}",
            )
    return cells[0]


FORMULA = Words("formula")
EXPONENT = Number(2)
TOKEN_TIME = Number(1, significant=2)


def _first_to_last(header: str, key: str, form: Number) -> Column:
    """A column of a number at the first and at the last T."""
    return Column(header, (Part(f"{key}_first", form), Part(f"{key}_last", form)), "{} → {}")


TOKEN_MIXING = Table(
    label="token-mixing-complexity",
    number="1",
    title="Token-mixing complexity",
    summary="What each operator costs, stores and waits for, with the measured powers of T.",
    caption=(
        "Cost of the token-mixing core, the sequential operations of its direct form, and the "
        "history it keeps while decoding. The campaign’s lines give the power of $T$ fitted to its "
        "own points, those whose time is at least five times that of the smallest $T$; timed are "
        "forward and backward of one layer’s operator on one sequence. (b) adds "
        "the 95% interval of the fit of log time on log $T$. A power of fewer than three such "
        "points, or with an interval wider than 1, is undetermined. Decode state is the size of "
        "the tensors that the next token needs; a token is decoded by the whole model, batch 1, "
        "at the first and the last $T$. (c) has the largest batch that was asked for."
    ),
    stubs=("Layer type",),
    rows=(
        Row("mha", ("MHA / FlashAttention",)),
        Row("full", ("Full / FlashRelation",)),
        Row("linear", ("Linear Relation",)),
    ),
    panels=(
        Panel(
            "(a) Asymptotic cost",
            (
                value("Token-mixing\ncomplexity", "complexity", FORMULA),
                value("Sequential ops.", "sequential", FORMULA),
                value("Decode history\nstate", "state", FORMULA),
            ),
        ),
        Panel(
            "(b) Fitted powers of $T$",
            (
                value("Time: exponent\n[95% interval]", "time_exponent", EXPONENT),
                value("Fitted to\n$T$", "contexts", Words()),
                value("Decode state:\nexponent", "state_exponent", EXPONENT),
                _first_to_last("Decoding a token,\nms", "decode", TOKEN_TIME),
                value("at $T$", "decoded", Words()),
            ),
            rows=tuple(Row(operator, (OPERATOR_NAME[operator],)) for operator in OPERATORS),
            measured=True,
        ),
        Panel(
            "(c) Decoding many rows",
            (
                value("Rows", "rows", Number()),
                _first_to_last("A token of all rows,\nms", "many", TOKEN_TIME),
                _first_to_last("Tokens/s", "rate", Number(0, grouped=True)),
                value("State at the\nlast $T$, GiB", "bytes", Number(2, significant=2)),
                value("at $T$", "many_at", Words()),
            ),
            rows=tuple(Row(f"decode-{model}", (VARIANTS[model].title,)) for model in DECODED),
            measured=True,
        ),
    ),
    measure=complexity,
    needs=Needs(benchmarks=("complexity", "decode")),
    systems=True,
    notes=(setting_notes,),
)
