"""The decoder-only models of the paper: `ModelConfig` fixes one, `Decoder` is one."""

from relation.nn.cache import DecodeState
from relation.nn.decoder import Decoder
from relation.nn.execution import Execution
from relation.variants import ModelConfig

__all__ = ["DecodeState", "Decoder", "Execution", "ModelConfig"]
