"""The paper's token mixers in plain PyTorch, and the backends that execute them.

Shapes are B (batch), H (heads), T (tokens), D (head width d_h). `full_relation` and
`linear_relation` document the arguments. Attention takes q, k and v instead of p1, p2 and info.
"""

from relation.ops.attention import attention_step, causal_attention, causal_flow, for_heads, scores
from relation.ops.backends import BACKENDS, get_backend
from relation.ops.full import full_flow, full_relation, full_relation_step
from relation.ops.linear import chunked_linear_relation, linear_relation
from relation.ops.rotations import apply_rope, givens_mix
from relation.ops.tiled import tiled_relation
