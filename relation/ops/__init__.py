"""The paper's token mixers in plain PyTorch, and the backends that execute them.

Shapes are B (batch), H (heads), T (tokens), D (head width d_h). `p1` and `p2` are the relation
coordinates after RoPE, `info` is the information state after Givens mixing.
"""

from relation.ops.attention import causal_attention, causal_flow
from relation.ops.backends import BACKENDS, get_backend
from relation.ops.decoding import attention_step, full_relation_step
from relation.ops.full import full_flow, full_relation
from relation.ops.givens import givens_mix
from relation.ops.linear import (
    chunked_linear_relation,
    expanded_linear_relation,
    linear_relation,
)
from relation.ops.rope import rope
from relation.ops.tiled import tiled_relation

__all__ = [
    "BACKENDS",
    "attention_step",
    "causal_attention",
    "causal_flow",
    "chunked_linear_relation",
    "expanded_linear_relation",
    "full_flow",
    "full_relation",
    "full_relation_step",
    "get_backend",
    "givens_mix",
    "linear_relation",
    "rope",
    "tiled_relation",
]
