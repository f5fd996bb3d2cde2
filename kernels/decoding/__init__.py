"""Decode one token per row of a batch: MHA, Full and Linear Relation, and the products around them.

    history_token   MHA and Full Relation               mixers.py
    linear_token    Linear Relation                     mixers.py
    project, embed  products of a few rows, embedding   dense.py
    draw            the next token of each row          drawing.py

The batch and the state's capacity do not change the order of a row's sums, so a row has the same
bits in every batch. The host never waits for the GPU: the kernels read `lengths`, (B,) int32 on the
device, the number of tokens before the new one. The caller, `relation.nn.replay`, ensures that
lengths are below the capacity. Arguments are not checked.

On Hopper and later a `chained` launch starts while the previous kernel still runs, and loads what
it can (chain.py). Pass chained=True only if all launches since the last unchained one were kernels
of this package, and wrote nothing but x, `projected`, `down`, `out` or `logits`.

Importing this needs Triton; `relation.kernels.available.why_no_decoding` does not.
"""

from relation.kernels.decoding.dense import ADD, GATE, embed, project
from relation.kernels.decoding.drawing import draw
from relation.kernels.decoding.mixers import history_token, linear_token

__all__ = ["ADD", "GATE", "draw", "embed", "history_token", "linear_token", "project"]
