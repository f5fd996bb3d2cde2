"""Full Relation as the paper writes it: the relation matrix R, its flow F and the transport Y.

This is the definition: every other form of Full Relation is tested against it. It materialises
T x T matrices.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.kernels.checks import check_device, check_groups, check_lambda, check_tau
from relation.kernels.documents import Documents, check_documents, token_counts, unseen
from relation.ops.attention import check_step, scores, shared_matmul


def full_flow(
    p1: Tensor,
    p2: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    silu: bool = True,
    documents: Documents | None = None,
) -> Tensor:
    """The normalised flow F = Softmax(R), Eq. 2 and 3.

    Returns (B, H, T, T), lower triangular, rows summing to 1. BF16 inputs round U to BF16; R and
    the softmax are FP32 (FP64 for FP64 inputs).
    """
    check_relation(lam, tau, documents, p1=p1, p2=p2)
    U = scores(p1, p2)  # U_ij, (B, H, T, T), Eq. 1
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / tau)  # Self S_i, (B, H, T)
    E = F.silu(U) if silu else U  # Exchange E_ij, (B, H, T, T)

    # R_ij = E_ij - lambda log i for j < i, R_ii = S_i, and -inf for j > i (Eq. 2).
    i = token_counts(documents, p1, U.dtype)  # (T,), or (B, 1, T) where documents count anew
    is_self = torch.eye(p1.shape[2], dtype=torch.bool, device=p1.device)
    R = torch.where(is_self, S[..., :, None], E - lam.to(U.dtype) * i.log()[..., None])
    R = R.masked_fill(unseen(documents, p1), -torch.inf)
    return R.softmax(dim=-1)  # Eq. 3


def full_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    silu: bool = True,
    documents: Documents | None = None,
) -> Tensor:
    """Full Relation, Y = F I (Eq. 3; Appendix A.1.6): (B, H, T, D) in info's dtype.

    p1, p2: the relation coordinates after RoPE, (B, H, T, D); info: the information after Givens
    mixing; all in one floating dtype. p2 and info may have fewer heads, a divisor of H, each read
    by neighbouring heads of p1. lam: the layer's count calibration, a floating tensor, () or (1,).
    tau: the Self temperature. documents: `relation.Documents`, of which a token sees its own alone;
    i starts anew in each. transport_self: False is the exchange-only ablation (Appendix D.1), the
    same flow of which only the entries j < i carry information. silu: False makes Exchange U
    itself, MHA with Relation's count and Self. Raises InputError for shapes, dtypes or devices that
    do not fit, an empty dimension, and a tau that is not positive and finite.
    """
    check_groups(p1=p1, p2=p2, info=info)
    flow = full_flow(p1, p2, lam, tau, silu=silu, documents=documents)
    if not transport_self:
        flow = flow.tril(-1)
    return shared_matmul(flow.to(info.dtype), info)


def full_relation_step(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    silu: bool = True,
    visible: Tensor | None = None,
) -> Tensor:
    """Full Relation of n new tokens: the last n rows of `full_relation`.

    p1: (B, H, n, D) of the new tokens; p2, info: (B, H or a divisor of it, T, D) of all tokens, the
    new ones last; visible: as `attention_step` takes it. The last token that one sees is itself.
    No more than n x T scores are formed.
    """
    visible = check_step("p1", p1, visible, p2=p2, info=info)  # (n, T) or (B, 1, n, T)
    check_lambda(lam)
    check_device(p1, lam)
    check_tau(tau)
    U = scores(p1, p2)  # (B, H, n, T)
    # i, how many tokens a row sees, and the column of Self, the last of them; (..., n, 1) each.
    i = visible.sum(-1, keepdim=True).to(U.dtype)
    self_column = visible.shape[-1] - 1 - visible.flip(-1).int().argmax(-1, keepdim=True)
    self_column = self_column.expand(*U.shape[:3], 1)  # (B, H, n, 1)
    S = torch.sigmoid(U.gather(-1, self_column) / tau)
    R = (F.silu(U) if silu else U) - lam.to(U.dtype) * i.log()
    flow = R.scatter(-1, self_column, S).masked_fill(~visible, -torch.inf).softmax(dim=-1)
    if not transport_self:
        flow = flow.scatter(-1, self_column, 0)
    return shared_matmul(flow.to(info.dtype), info)


def check_relation(lam: Tensor, tau: float, documents: Documents | None, **states: Tensor) -> int:
    """Raise InputError for arguments that do not fit; returns how many heads of p1 share one.

    states: p1 first, then p2 and, where it is given, info.
    """
    check_lambda(lam)
    groups = check_groups(**states)
    check_device(states["p1"], lam)
    check_tau(tau)
    check_documents(documents, states["p1"])
    return groups
