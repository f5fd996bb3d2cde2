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
"""

from importlib import import_module

import torch

from relation.kernels.available import DTYPES, NARROWEST, WIDEST, why_unavailable

ADD, GATE = "add", "gate"
_HOMES = {"history_token": "mixers", "linear_token": "mixers", "draw": "drawing"}
_HOMES |= {"project": "dense", "embed": "dense"}


def __getattr__(name: str):
    """Import a function when it is first used, because it needs Triton."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Return the reason why these kernels cannot decode such a model on `device`, or None."""
    if dtype not in DTYPES:
        return f"the model computes in {dtype}; the kernels take bfloat16, float16 or float32"
    if not NARROWEST <= head_dim <= WIDEST:
        return f"the head width is {head_dim}; the kernels take {NARROWEST} to {WIDEST}"
    return why_unavailable(device)
