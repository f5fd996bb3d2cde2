"""The tables: the paper's seventeen in its order, and those beyond it."""

from types import ModuleType

from report.table import Table
from report.tables import ablations, complexity, configs, quality, structure, systems, variants


def _of(*modules: ModuleType) -> list[Table]:
    return [each for module in modules for each in vars(module).values() if type(each) is Table]


PAPER = tuple(
    sorted(
        _of(ablations, complexity, configs, quality, structure, systems),
        key=lambda table: int(table.number),
    )
)
EVERY = (*PAPER, *_of(variants))
