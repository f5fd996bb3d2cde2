"""The decoder-only models of the paper: `ModelConfig` fixes one, `Decoder` is one."""

from relation.geometry import ModelConfig
from relation.model.cache import DecodeState
from relation.model.decoder import Decoder
from relation.model.execution import Execution

__all__ = ["DecodeState", "Decoder", "Execution", "ModelConfig"]
