"""The paper’s tables in its order, and those beyond it: every ``Table`` that a module declares."""

from types import ModuleType

from report.values import (
    ablations,
    architecture,
    complexity,
    conversion,
    copying,
    cost,
    length,
    linear,
    own_scales,
    quality,
    recall,
    self_use,
    structure,
    systems,
)
from report.values.layout import Table


def _declared(*modules: ModuleType) -> list[Table]:
    found = (thing for module in modules for thing in vars(module).values())
    return [thing for thing in found if isinstance(thing, Table)]


TABLES = tuple(
    sorted(
        _declared(ablations, architecture, complexity, linear, quality, structure, systems),
        key=lambda table: int(table.number),
    )
)
# Of what the paper does not measure: no value is judged, and no verdict of a claim counts one.
BEYOND = tuple(_declared(recall, cost, copying, length, self_use, conversion, own_scales))
EVERY = (*TABLES, *BEYOND)

__all__ = ["BEYOND", "EVERY", "TABLES"]
