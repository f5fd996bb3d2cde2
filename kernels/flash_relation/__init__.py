"""FlashRelation: exact Full Relation, computed tile by tile (the paper's Sections 3.1 and 5.1)."""

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
    """Compute Full Relation, Y = F I, in memory linear in T (Section 3.1; Appendix A.1 and A.3).

    p1, p2, info: (B, H, T, D), all BF16, FP16 or FP32, with any strides; D from 16 to 128. p1 and
    p2 come after RoPE, info after Givens mixing. p2 and info may have fewer heads, a divisor of H;
    neighbouring heads of p1 then share one. A pass in Triton takes at most 65,535 blocks per head,
    so T may reach 1,048,560 (16-bit inputs on a GPU: 2,097,120 or more). lam: one FP32 number, ()
    or (1,). transport_self: False is the exchange-only ablation (Appendix D.1). The flow F is the
    same, but only its entries j < i transport information. documents: a token sees only its own
    document, and i counts within it. The kernels skip tiles of other documents.

    Returns (B, H, T, D) in the inputs' dtype, stored as (B, T, H, D). Scores, normalisers and sums
    are FP32. Differentiable once in p1, p2, info and lam; gradients are bitwise repeatable.
    Raises InputError for other shapes or dtypes, mixed devices, a tau that is not positive and
    finite, or a device for which `why_unavailable` gives a reason.
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
    # Imported here because it needs Triton.
    from relation.kernels.flash_relation.op import EagerRelation, relation_forward

    run = EagerRelation.apply if is_eager(p1, p2, info, lam) else relation_forward
    return run(p1, p2, info, lam, float(tau), transport_self, starts, ends)[0]
