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


def _places(block: Tensor, before: int, lengths: Tensor | None) -> Tensor:
    """Where in the history the block's tokens stand, from 0: (n,), or (B, 1, n) by the lengths."""
    place = torch.arange(block.shape[2], device=block.device)
    if lengths is None:
        return before + place
    if tuple(lengths.shape) != (block.shape[0],) or lengths.dtype != torch.int64:
        raise InputError(
            f"lengths are {lengths.dtype} of shape {tuple(lengths.shape)}; give "
            f"({block.shape[0]},) in int64"
        )
    check_device(block, lengths)
    return (lengths[:, None] - len(place) + place)[:, None]


def _future(places: Tensor, total: int) -> Tensor:
    """Mask (n, T) or (B, 1, n, T) of what a token of the block may not see: j > i."""
    return torch.arange(total, device=places.device) > places[..., None]


def attention_step(q: Tensor, k: Tensor, v: Tensor, *, lengths: Tensor | None = None) -> Tensor:
    """Causal attention of n new tokens: the last n rows of `causal_attention`.

    q: (B, H, n, D) of the new tokens; k, v: (B, H, T, D) of all tokens, the new ones last; one
    floating dtype, q and k after RoPE. lengths: (B,) int64, where rows differ: row b's history is
    its first lengths[b] tokens, n to T, which is not checked. Returns (B, H, n, D) in their dtype;
    the softmax is FP32 (FP64 for FP64 inputs). Raises InputError for shapes that do not fit, an
    empty dimension, mixed dtypes or mixed devices.
    """
    places = _places(q, _tokens_before("q", q, k=k, v=v), lengths)
    flow = scores(q, k).masked_fill(_future(places, k.shape[2]), -torch.inf).softmax(dim=-1)
    return flow.to(v.dtype) @ v


def full_relation_step(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    lengths: Tensor | None = None,
) -> Tensor:
    """Full Relation of n new tokens (Section 3.1): the last n rows of `full_relation`.

    p1: (B, H, n, D) of the new tokens; p2, info: (B, H, T, D) of all tokens, the new ones last; one
    floating dtype, p1 and p2 after RoPE, info after Givens mixing; lam: one number, shape () or
    (1,); lengths: as `attention_step` takes them. Returns (B, H, n, D) in their dtype; R and the
    softmax are FP32 (FP64 for FP64 inputs). `transport_self=False` is the exchange-only ablation
    (Appendix D.1). Raises InputError for shapes that do not fit, an empty dimension, mixed dtypes
    or devices, a lam that is not one floating number, or a tau that is not positive and finite.
    """
    places = _places(p1, _tokens_before("p1", p1, p2=p2, info=info), lengths)
    check_lambda(lam)
    check_device(p1, lam)
    check_tau(tau)
    U = scores(p1, p2)
    own = places.expand(U.shape[:3])[..., None]
    S = torch.sigmoid(U.gather(-1, own) / tau)

    i = (places + 1).to(U.dtype)
    R = (F.silu(U) - lam.to(U.dtype) * i.log()[..., None]).scatter(-1, own, S)
    flow = R.masked_fill(_future(places, U.shape[-1]), -torch.inf).softmax(dim=-1)
    if not transport_self:
        flow = flow.scatter(-1, own, 0)
    return flow.to(info.dtype) @ info
