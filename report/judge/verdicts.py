"""The verdict on one cell: within its tolerance, outside it, or not judged, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from report.judge.chosen import CHOSE
from report.judge.setting import Setting
from report.judge.tolerances import Rule
from report.values.measured import ANSWERED
from report.values.paper import load, resolution, spread

Verdict = Literal["same", "within", "outside", "not judged", "chose the reading"]


@dataclass(frozen=True)
class Judgement:
    """The verdict, why, and what the value was held to, in the cell's unit.

    Same: a count, setting or word that had to be the paper's and is, which agrees by construction
    of the campaign. tolerance: how far it may lie from the paper's; least, most: the bound of a
    rule with one side, but for the paper's rounding. None where there is no such.
    """

    verdict: Verdict
    reason: str
    tolerance: float | None = None
    least: float | None = None
    most: float | None = None


def _not_judged(reason: str) -> Judgement:
    return Judgement("not judged", reason)


def judge(
    cell: Mapping[str, Any], margin: float | None, rule: Rule, setting: Setting, chose: str = ""
) -> Judgement:
    """Hold one cell of the paper against the campaign's value.

    Args:
        cell: a row of ``cells.build``; ``paper`` is not None.
        margin: half of the 95% t interval of the campaign's value, in the cell's unit.
        rule: the tolerance that covers the cell.
        setting: what the campaign has in common with the paper.
        chose: why the value is evidence of the choice of a reading; empty where it is not.
    """
    if setting.other_models:
        return _not_judged(setting.other_models)
    if rule.kind == "none":
        return _not_judged(rule.why)
    if cell["status"] not in ANSWERED:
        return _not_judged(f"there is no value: {cell['status']}")
    if chose:
        return Judgement(CHOSE, chose)
    for need in rule.needs:
        reason = setting.lacks(need)
        if reason is not None:
            return _not_judged(reason)
    if cell["status"] == "not reached":
        return Judgement("outside", "never reached, where the paper has a value")
    if cell["paper_value"] is None:
        same = cell["text"] == cell["paper"]
        return Judgement("same" if same else "outside", "the same" if same else "not the same")
    return _number(cell, margin, rule)


def _number(cell: Mapping[str, Any], margin: float | None, rule: Rule) -> Judgement:
    value, paper = cell["value"], cell["paper_value"]
    rounding = resolution(cell["paper"])
    if rule.kind in ("at-least", "at-most", "own"):
        return _bound(cell, rule, rounding)
    if rule.kind == "exact":
        allowed, said = 0.0, "it must be the same"
    else:
        theirs = spread(cell["table"], cell["row"], cell["column"])
        if rule.kind == "seed":
            known = {f"{rule.factor} of the paper's standard deviations": rule.factor * theirs}
        else:
            known = {"our 95% interval": margin, "the paper's standard deviation": theirs}
            known = {name: size for name, size in known.items() if size is not None}
        if not known and abs(value - paper) > rounding:
            return _not_judged("one seed has no interval, and the paper prints no spread")
        known["the paper's rounding"] = rounding
        said = max(known, key=known.__getitem__)
        allowed = known[said]
    # A count of 0 decimals is exact; a printed fraction stands for all that rounds to it.
    fractional = "." in cell["paper"]
    allowed = max(allowed, rounding if fractional else 0.0)
    agrees: Verdict = "same" if rule.kind == "exact" else "within"
    within = abs(value - paper) <= allowed * (1 + 1e-9)
    return Judgement(agrees if within else "outside", f"allowed: {said}", allowed)


def _bound(cell: Mapping[str, Any], rule: Rule, rounding: float) -> Judgement:
    """At least, or at most, what the paper has: its own value, or its worst over the scales."""
    value, paper = cell["value"], cell["paper_value"]
    more = rule.kind == "at-least" or rule.better == "more"
    if rule.kind == "own":
        bound, whose = paper, "the paper's value"
    else:
        column = [
            found.number
            for (_, name, _), found in load(cell["table"]).items()
            if name == cell["column"]
        ]
        bound = min(column) if more else max(column)
        whose = f"{bound:g}, the paper's {'least' if more else 'greatest'}"
    limit = bound * (1 - rule.slack if more else 1 + rule.slack)
    within = value >= limit - rounding if more else value <= limit + rounding
    slack = f", but for {100 * rule.slack:g}%" if rule.slack else ""
    side = "least" if more else "most"
    said = f"must be at {side} {whose}{slack}"
    return Judgement("within" if within else "outside", said, **{side: limit})
