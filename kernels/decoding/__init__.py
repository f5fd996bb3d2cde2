"""One token of a batch: a step of MHA, Full and Linear Relation and the products around them.

    history_token   MHA and Full Relation               mixers.py
    linear_token    Linear Relation                     mixers.py
    project, embed  products of a few rows, embedding   dense.py
    draw            the next token of each row          drawing.py

Every sum of a row is formed in an order that neither the batch nor the state's capacity changes,
so that equal rows get equal bits in any company. Nothing here waits for the GPU: where a row stands
is read from `lengths`, (B,) int32 on the device, the tokens before the new one; it must be below
the capacity, which the caller, `relation.nn.replay`, knows. Arguments are not checked.

On Hopper and later a `chained` launch starts, and loads what it can, while the kernel ahead still
runs (chain.py). Pass it where kernels of this module alone have been launched since the last launch
that is not chained, and have written x, `projected`, `down`, `out` or `logits` alone.
"""

from importlib import import_module

import torch

from relation.kernels.available import DTYPES, NARROWEST, WIDEST, why_unavailable

ADD, GATE = "add", "gate"
# CUDA refuses more than 65,535 pieces of a history, of 128 tokens each (`PIECE` in mixers.py).
LONGEST = 65_535 * 128
_HOMES = {"history_token": "mixers", "linear_token": "mixers", "draw": "drawing"}
_HOMES |= {"project": "dense", "embed": "dense"}


def __getattr__(name: str):
    """The functions are imported where they are first used, as they need Triton."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def why_not(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """The reason why these kernels cannot decode such a model on `device`, or None."""
    if dtype not in DTYPES:
        return f"the model computes in {dtype}, and the kernels in bfloat16, float16 or float32"
    if not NARROWEST <= head_dim <= WIDEST:
        return f"the head width is {head_dim}, and the kernels take {NARROWEST} to {WIDEST}"
    return why_unavailable(device)
