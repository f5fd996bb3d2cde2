"""The paper's decoder, fixed by a `ModelConfig`; `relation.nn.layers` has its mixers as layers."""

from relation.nn.cache import DecodeState
from relation.nn.model import Decoder
from relation.ops.backends import Execution
from relation.variants import ModelConfig

__all__ = ["DecodeState", "Decoder", "Execution", "ModelConfig"]
