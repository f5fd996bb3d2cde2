"""The paper's seventeen tables in its order, then further tables. A new table is a new module."""

from importlib import import_module
from pkgutil import iter_modules

from report.table import Table

_MODULES = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
_TABLES = [each for module in _MODULES for each in vars(module).values() if type(each) is Table]
PAPER = tuple(sorted((t for t in _TABLES if t.of_paper), key=lambda table: int(table.number)))
EVERY = (*PAPER, *(each for each in _TABLES if not each.of_paper))
