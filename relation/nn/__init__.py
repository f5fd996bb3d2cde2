"""The paper's decoder, fixed by a `ModelConfig`, and its mixers as layers for other models."""

from importlib import import_module

from relation.nn.cache import DecodeState
from relation.nn.model import Decoder
from relation.ops.backends import Execution
from relation.variants import ModelConfig

__all__ = ["DecodeState", "Decoder", "Execution", "FullRelation", "LinearRelation", "ModelConfig"]


def __getattr__(name: str):
    """The layers are imported on their first use: the paper's models have none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module("relation.nn.layers"), name)
