"""Linear Relation in chunks: exact, linear in T, with initial and final state (Section 5.2)."""

from torch import Tensor

from relation.errors import InputError
from relation.kernels.available import check_arguments, check_available, is_eager
from relation.kernels.documents import Documents, forget_at_starts


def linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
    *,
    documents: Documents | None = None,
) -> tuple[Tensor, Tensor]:
    """Return y and the final state: Ask Self, Ask Others, Answer, Become Others (Appendix A.4).

    p1, p2, info: (B, H, T, D), all BF16, FP16 or FP32, any strides. T is 1 to 2,097,120 in FP32 and
    1 to 4,194,240 in 16 bits; D is 16 to 128. p1 and p2 come after RoPE and before normalisation,
    info after Givens mixing. p2 and info may have fewer heads, a divisor of H: neighbouring heads
    of p1 share one. log_retention: g = log alpha <= 0, (B, H, T, D), FP32 or BF16; -inf forgets
    all. state: C before the first token, (B, H, D, D), FP32, with the retained channel first and
    the information channel last; None means C = 0. tau: the Self temperature. documents: each
    starts with C = 0. Returns y (B, H, T, D) in info's dtype, stored as (B, T, H, D), and the final
    state (B, H, D, D), FP32. Sums are FP32. However strong the retention, no result is NaN. Every
    tensor is differentiable once. Equal inputs give bitwise equal results and gradients.

    Raises InputError for other shapes or dtypes, mixed devices, a tau that is not positive and
    finite, documents with a state, and a device for which `why_unavailable` returns a reason.
    """
    _check_inputs(p1, p2, info, log_retention, state, tau)
    log_retention = forget_at_starts(documents, p1, log_retention, state)
    check_available("linear_relation", p1)
    # Imported only here because it needs Triton.
    from relation.kernels.linear_relation.op import EagerRelation, linear_forward

    given = p1, p2, info, log_retention, state
    run = EagerRelation.apply if is_eager(*given) else linear_forward
    y, final, *_ = run(*given, float(tau))
    return y, final


def _check_inputs(p1, p2, info, log_retention, state, tau) -> None:
    given = {"log_retention": log_retention} | ({} if state is None else {"state": state})
    check_arguments("linear_relation", p1, p2, info, tau, **given)
    B, H, _, D = p1.shape
    wanted = {
        "log_retention": (p1.shape, "float32 or bfloat16"),
        "state": ((B, H, D, D), "float32"),
    }
    for name, x in given.items():
        (shape, dtypes), dtype = wanted[name], str(x.dtype).removeprefix("torch.")
        if x.shape != shape or dtype not in dtypes.split(" or "):
            problem = f"dtype {dtype}" if x.shape == shape else f"shape {tuple(x.shape)}"
            raise InputError(f"{name} has {problem}; give {tuple(shape)} in {dtypes}")
