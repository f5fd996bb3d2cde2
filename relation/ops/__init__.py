"""The paper's token mixers in plain PyTorch, and the backends that execute them.

Shapes are B (batch), H (heads), T (tokens), D (head width d_h). Unless a docstring says otherwise:

p1, p2: the relation coordinates after RoPE, (B, H, T, D) in one floating dtype, or q and k; info:
    the information state after Givens mixing, or v. The second and third may have fewer heads, a
    divisor of H, each shared by neighbouring heads of the first.
lam: the layer's count calibration, one floating number, () or (1,). tau: the Self temperature.
documents: a token sees its own document alone, and i starts anew in each.

Each raises InputError for shapes, dtypes or devices that do not fit, an empty dimension, and a tau
that is not positive and finite.
"""

from relation.ops.attention import attention_step, causal_attention, causal_flow, for_heads, scores
from relation.ops.backends import BACKENDS, get_backend
from relation.ops.full import full_flow, full_relation, full_relation_step
from relation.ops.givens import givens_mix
from relation.ops.linear import chunked_linear_relation, linear_relation
from relation.ops.rope import rope
from relation.ops.tiled import tiled_relation
