"""The paper's decoder, fixed by a `ModelConfig`, and its mixers as layers for other models."""

from relation.nn.cache import DecodeState
from relation.nn.layers import FullRelation, LinearRelation
from relation.nn.model import Decoder
from relation.ops.backends import Execution
from relation.variants import ModelConfig

__all__ = ["DecodeState", "Decoder", "Execution", "FullRelation", "LinearRelation", "ModelConfig"]
