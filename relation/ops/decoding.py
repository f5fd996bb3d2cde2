"""Decoding: n new tokens against the history that a cache keeps (Table 1's decode state).

The history's T tokens end with the block's own n, so that token a of the block (from 0) stands at
i = T - n + a + 1. With n = 1 it is one step of decoding, with n = T the whole sequence. No more
than n x T scores are formed. Linear Relation needs no such form: `linear_relation` takes the state
of the tokens before and returns the next one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError
from relation.kernels.checks import check_device, check_lambda, check_states, check_tau
from relation.ops.scores import scores


def _tokens_before(name: str, block: Tensor, **history: Tensor) -> int:
    """T - n of a block (B, H, n, D) and its history, (B, H, T, D) each, after checking them."""
    check_states(**history)
    total = next(iter(history.values())).shape[2]
    if block.ndim != 4 or not 0 < block.shape[2] <= total:
        raise InputError(
            f"{name} has shape {tuple(block.shape)}; give (B, H, n, D) with 1 <= n <= {total}, "
            "the tokens of a history that ends with the block"
        )
    before = total - block.shape[2]
    check_states(**{name: block}, **{key: h[:, :, before:] for key, h in history.items()})
    return before


def _future(block: Tensor, before: int) -> Tensor:
    """(n, T) mask of what token i of the block may not see: j > i."""
    n = block.shape[2]
    return torch.ones(n, before + n, dtype=torch.bool, device=block.device).triu(before + 1)


def attention_step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of n new tokens: the last n rows of `causal_attention`.

    q: (B, H, n, D) of the new tokens; k, v: (B, H, T, D) of all tokens, the new ones last; one
    floating dtype, q and k after RoPE. Returns (B, H, n, D) in their dtype; the softmax is FP32
    (FP64 for FP64 inputs). Raises InputError for shapes that do not fit, an empty dimension, mixed
    dtypes or mixed devices.
    """
    before = _tokens_before("q", q, k=k, v=v)
    flow = scores(q, k).masked_fill(_future(q, before), -torch.inf).softmax(dim=-1)
    return flow.to(v.dtype) @ v


def full_relation_step(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
) -> Tensor:
    """Full Relation of n new tokens (Section 3.1): the last n rows of `full_relation`.

    p1: (B, H, n, D) of the new tokens; p2, info: (B, H, T, D) of all tokens, the new ones last; one
    floating dtype, p1 and p2 after RoPE, info after Givens mixing; lam: one number, shape () or
    (1,). Returns (B, H, n, D) in their dtype; R and the softmax are FP32 (FP64 for FP64 inputs).
    `transport_self=False` is the exchange-only ablation (Appendix D.1). Raises InputError for
    shapes that do not fit, an empty dimension, mixed dtypes or devices, a lam that is not one
    floating number, or a tau that is not positive and finite.
    """
    before = _tokens_before("p1", p1, p2=p2, info=info)
    check_lambda(lam)
    check_device(p1, lam)
    check_tau(tau)
    U, n = scores(p1, p2), p1.shape[2]
    S = torch.sigmoid(U.diagonal(before, dim1=-2, dim2=-1) / tau)

    i = torch.arange(before + 1, before + n + 1, device=p1.device, dtype=U.dtype)
    R = F.silu(U) - lam.to(U.dtype) * i.log()[:, None]
    R.diagonal(before, dim1=-2, dim2=-1).copy_(S)
    flow = R.masked_fill(_future(p1, before), -torch.inf).softmax(dim=-1)
    if not transport_self:
        flow = flow.tril(before - 1)
    return flow.to(info.dtype) @ info
