"""The paper's decoder, defined by a `ModelConfig`; `relation.nn.layers` has single mixers."""

from relation.nn.cache import DecodeState
from relation.nn.model import Decoder
from relation.ops.backends import Execution
from relation.variants import ModelConfig

__all__ = ["DecodeState", "Decoder", "Execution", "ModelConfig"]
