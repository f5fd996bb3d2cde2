"""The paper’s tables in its order: every ``Table`` that a family's module declares."""

from report.values import architecture, complexity, linear, quality, structure, systems
from report.values.layout import Table

_FAMILIES = (architecture, complexity, linear, quality, structure, systems)
_DECLARED = [
    found for family in _FAMILIES for found in vars(family).values() if isinstance(found, Table)
]
TABLES = tuple(sorted(_DECLARED, key=lambda table: int(table.number)))

__all__ = ["TABLES"]
