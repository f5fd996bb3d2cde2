"""Reference implementation of "Ask Self, Ask Others: Relation Is All You Need".

The library is `relation.ops` (the equations in plain PyTorch), `relation.kernels` (FlashRelation
and Linear Relation in Triton) and `relation.nn`; each is imported on its first use. All other
modules are the reproduction's pipeline, which needs the extras `pipeline` and `report`. A module
imports only from its package and earlier ones, in the order of `tests/library/test_imports.py`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_PACKAGES = ("kernels", "nn", "ops")
_HOMES = {
    "Decoder": "nn",
    "Documents": "kernels.documents",
    "Execution": "nn",
    "FullRelation": "nn.layers",
    "LinearRelation": "nn.layers",
    "ModelConfig": "nn",
    "flash_relation": "kernels",
    "full_relation": "ops",
    "linear_relation": "ops",
}
__all__ = [*_HOMES, "__version__"]  # without `nn`, which would replace PyTorch's


def __getattr__(name: str) -> Any:
    """Import on first use, so that the Snakefile can be parsed without PyTorch."""
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *__all__})
