"""FlashRelation: Full Relation, exact, by tiles (the paper's Sections 3.1 and 5.1)."""

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.available import check_arguments, check_available, is_eager
from relation.kernels.documents import Documents, check_documents


def flash_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    documents: Documents | None = None,
) -> Tensor:
    """Full Relation, Y = F I, in memory linear in T (Section 3.1; Appendix A.1 and A.3).

    p1, p2, info: (B, H, T, D), one of BF16, FP16 and FP32, any strides, T from 1 to 1,048,560 (in
    16 bits twice that: a pass takes 65,535 tiles of a head) and D from 16 to 128; p1 and p2 after
    RoPE, info after Givens mixing; p2 and info may have fewer heads, a divisor of H, each read by
    neighbouring heads of p1. lam: one FP32 number, shape () or (1,). Returns
    (B, H, T, D) in their dtype, stored as (B, T, H, D). Scores, normalisers and sums are FP32.
    Differentiable once in p1, p2, info and lam; equal inputs give bitwise equal gradients.
    `transport_self=False` is the exchange-only ablation (Appendix D.1): the same flow, of which
    only the entries j < i carry information. documents: a token sees its own alone, and i counts
    in it; tiles without a row's document are not read.

    Raises InputError for other shapes, dtypes, mixed devices or tau <= 0, and on a device for
    which `why_unavailable` has a reason.
    """
    check_arguments("flash_relation", p1, p2, info, tau, lam=lam)
    if lam.dtype != torch.float32 or tuple(lam.shape) not in ((), (1,)):
        dtype = str(lam.dtype).removeprefix("torch.")
        raise InputError(
            f"lam has shape {tuple(lam.shape)} and dtype {dtype}; give one float32 number"
        )
    check_documents(documents, p1)
    check_available("flash_relation", p1)
    starts = ends = None
    if documents is not None:
        starts, ends = documents.starts, documents.ends
    # Imported here, as it needs Triton.
    from relation.kernels.flash_relation.op import EagerRelation, relation_forward

    run = EagerRelation.apply if is_eager(p1, p2, info, lam) else relation_forward
    return run(p1, p2, info, lam, float(tau), transport_self, starts, ends)[0]
