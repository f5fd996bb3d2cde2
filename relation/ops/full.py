"""Full Relation as the paper writes it: the relation matrix R, its flow F and the transport Y.

This is the definition everything else is held to. It materialises T x T matrices.
"""

import torch
import torch.nn.functional as F

from relation.kernels.checks import check_device, check_lambda, check_states, check_tau
from relation.ops.scores import scores


def full_flow(
    p1: torch.Tensor, p2: torch.Tensor, lam: torch.Tensor, tau: float = 2.0
) -> torch.Tensor:
    """The normalised flow F = Softmax(R) of Section 3.1 (Appendix A.1.2).

    p1, p2: (B, H, T, D) after RoPE, any floating dtype; lam: one number, shape () or (1,), the
    layer's count calibration; tau: the Self temperature. Returns (B, H, T, T), lower triangular,
    rows summing to 1. BF16 inputs round U to BF16; R and the softmax are FP32 (FP64 for FP64
    inputs). Raises InputError for unequal shapes or dtypes, an empty dimension, mixed devices, a
    lam that is not one floating number, or a tau that is not positive and finite.
    """
    check_states(p1=p1, p2=p2)
    check_lambda(lam)
    check_device(p1, lam)
    check_tau(tau)
    U, length = scores(p1, p2), p1.shape[2]
    S = torch.sigmoid(U.diagonal(dim1=-2, dim2=-1) / tau)
    E = F.silu(U)

    i = torch.arange(1, length + 1, device=p1.device, dtype=U.dtype)
    R = E - lam.to(U.dtype) * i.log()[:, None]
    own = torch.eye(length, dtype=torch.bool, device=p1.device)
    future = torch.ones_like(own).triu(1)
    R = torch.where(own, S[..., :, None], R).masked_fill(future, -torch.inf)
    return R.softmax(dim=-1)


def full_relation(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    lam: torch.Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
) -> torch.Tensor:
    """Full Relation, Y = F I (Section 3.1; Appendix A.1.6).

    p1, p2, info: (B, H, T, D), one floating dtype, p1 and p2 after RoPE, info after Givens mixing;
    lam: one number, shape () or (1,); tau: the Self temperature. Returns (B, H, T, D) in their
    dtype. `transport_self=False` is the exchange-only ablation (Appendix D.1): the same flow, of
    which only the entries j < i carry information. Raises InputError as `full_flow` does.
    """
    check_states(p1=p1, p2=p2, info=info)
    flow = full_flow(p1, p2, lam, tau)
    if not transport_self:
        flow = flow.tril(-1)
    return flow.to(info.dtype) @ info
