"""Triton kernels of the paper's operators. Importing this needs no Triton and no GPU.

Their source is the project's folder kernels/, in a wheel the folder next to this file. `__path__`
makes this module a package of that folder's files. The folder itself has no `__init__.py`, so
`import kernels` finds Hugging Face's package instead.
"""

from pathlib import Path

_HERE = Path(__file__)
_HOMES = (_HERE.with_suffix(""), _HERE.parents[1] / "kernels")
__path__ = [str(next(home for home in _HOMES if home.is_dir()))]
__spec__.submodule_search_locations = __path__

from relation.kernels.available import why_unavailable  # noqa: E402
from relation.kernels.flash_relation import flash_relation  # noqa: E402
from relation.kernels.linear_relation import linear_relation  # noqa: E402

__all__ = ["flash_relation", "linear_relation", "why_unavailable"]
