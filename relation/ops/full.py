"""Full Relation as the paper writes it: the relation matrix R, the flow F and the transport Y.

This file is the definition of Full Relation. It materialises T x T matrices. The tests compare
every other implementation with it.
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
    """Return the flow F = Softmax(R) (equations 2 and 3), for arguments of `full_relation`.

    F is (B, H, T, T), lower triangular, and each row sums to 1. BF16 inputs round U to BF16. R and
    the softmax are FP32 (FP64 for FP64 inputs).
    """
    check_relation(lam, tau, documents, p1=p1, p2=p2)
    U = scores(p1, p2)  # U_ij, (B, H, T, T), Eq. 1
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / tau)[..., None]  # Self S_i, (B, H, T, 1)
    E = F.silu(U) if silu else U  # Exchange E_ij
    i = token_counts(documents, p1, U.dtype)[..., None]  # (T, 1), or (B, 1, T, 1) with documents
    is_self = torch.eye(p1.shape[2], dtype=torch.bool, device=p1.device)
    R = torch.where(is_self, S, E - lam.to(U.dtype) * i.log())  # Eq. 2
    return R.masked_fill(unseen(documents, p1), -torch.inf).softmax(dim=-1)  # Eq. 3


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
    """Return Full Relation, Y = F I (equation 3; Appendix A.1.6): (B, H, T, D) in info's dtype.

    p1, p2: the relation coordinates after RoPE. info: the information after Givens mixing. Each is
    (B, H, T, D), all in one floating dtype. p2 and info may have only H / n heads, each read by n
    neighbouring heads of p1. lam: the layer's count calibration, a floating tensor, () or (1,).
    tau: the Self temperature. documents: `relation.Documents`; a token sees only its own document,
    and i restarts at 1 in each. transport_self: False is the exchange-only ablation (Appendix D.1):
    the same flow, but Self carries no information. silu: False uses U itself as Exchange, which is
    MHA with Relation's count and Self. Raises InputError for shapes, dtypes or devices that do not
    fit, an empty dimension, or a tau that is not a positive, finite number (a tensor is refused).
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
    """Return Full Relation of n new tokens, the last n rows of `full_relation`: (B, H, n, D).

    p1: (B, H, n, D), the new tokens. p2, info: (B, H or a divisor of it, T, D), all tokens, with
    the new ones last. visible: as in `attention_step`; the last token that a row sees must be its
    own. The function computes only n x T scores per head.
    """
    visible = check_step("p1", p1, visible, p2=p2, info=info)  # (n, T) or (B, 1, n, T)
    check_lambda(lam)
    check_device(p1, lam)
    check_tau(tau)
    U = scores(p1, p2)  # (B, H, n, T)
    i = visible.sum(-1, keepdim=True)  # (..., n, 1): how many tokens a row sees
    is_self = visible & (visible.cumsum(-1) == i)  # (..., n, T): the i-th it sees
    S, E = torch.sigmoid(U / tau), F.silu(U) if silu else U
    R = torch.where(is_self, S, E - lam.to(U.dtype) * i.to(U.dtype).log())
    flow = R.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    if not transport_self:
        flow = flow.masked_fill(is_self, 0)
    return shared_matmul(flow.to(info.dtype), info)


def check_relation(lam: Tensor, tau: float, documents: Documents | None, **states: Tensor) -> None:
    """Raise InputError for arguments that do not fit.

    states: p1, p2 and optionally info, in this order.
    """
    check_lambda(lam)
    check_groups(**states)
    check_device(states["p1"], lam)
    check_tau(tau)
    check_documents(documents, states["p1"])
