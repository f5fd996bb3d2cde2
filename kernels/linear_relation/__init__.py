"""Linear Relation in chunks: exact, linear in T, with the state in and out (Section 5.2)."""

import torch

from relation.errors import InputError
from relation.kernels.checks import check_device, check_floating, check_groups, check_tau
from relation.kernels.documents import Documents, forget_at_starts
from relation.kernels.flash_relation import DTYPES, NARROWEST, WIDEST, is_eager, why_unavailable


def linear_relation(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    tau: float = 2.0,
    state: torch.Tensor | None = None,
    *,
    documents: Documents | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ask Self, Ask Others, Answer, Become Others (Section 5.2; Appendix A.4), in chunks of tokens.

    p1, p2, info: (B, H, T, D), one of BF16, FP16 and FP32, any strides, T >= 1 and D from 16 to
    128; p1, p2 after RoPE and before normalisation, info after Givens mixing; p2 and info may have
    fewer heads, a divisor of H, each read by neighbouring heads of p1. log_retention:
    g = log alpha <= 0, (B, H, T, D), FP32 or BF16; -inf forgets all. state: C of the tokens before,
    (B, H, D, D), FP32, with the retained channel first and the information channel last, or None
    for C = 0. tau: the Self temperature. documents: each starts with C = 0.
    Returns y (B, H, T, D) in info's dtype, stored as (B, T, H, D), and the final state
    (B, H, D, D), FP32. Sums are FP32, and no retention, however strong, gives NaN. Differentiable
    once in every tensor; equal inputs give bitwise equal results and gradients.

    Raises InputError for other shapes, dtypes, mixed devices or tau <= 0, and on a device for
    which `why_unavailable` has a reason.
    """
    _check_inputs(p1, p2, info, log_retention, state, tau)
    if documents is not None:
        log_retention = forget_at_starts(documents, p1, log_retention, state)
    # Imported here, as it needs Triton.
    from relation.kernels.linear_relation.autograd import EagerRelation, linear_forward

    given = p1, p2, info, log_retention, state
    run = EagerRelation.apply if is_eager(*given) else linear_forward
    y, final, *_ = run(*given, float(tau))
    return y, final


def _check_inputs(
    p1: torch.Tensor,
    p2: torch.Tensor,
    info: torch.Tensor,
    log_retention: torch.Tensor,
    state: torch.Tensor | None,
    tau: float,
) -> None:
    given = {"log_retention": log_retention} | ({} if state is None else {"state": state})
    check_floating(**given)
    check_groups(p1=p1, p2=p2, info=info)
    check_device(p1, *given.values())
    check_tau(tau)
    B, H, _, D = p1.shape
    if not NARROWEST <= D <= WIDEST:
        raise InputError(f"the head width is {D}; linear_relation takes {NARROWEST} to {WIDEST}")
    if p1.dtype not in DTYPES:
        name = _name(p1.dtype)
        raise InputError(f"p1, p2 and info have dtype {name}; give bfloat16, float16 or float32")
    if log_retention.shape != p1.shape:
        raise InputError(
            f"log_retention has shape {tuple(log_retention.shape)}; give {tuple(p1.shape)}"
        )
    if log_retention.dtype not in (torch.float32, torch.bfloat16):
        raise InputError(
            f"log_retention has dtype {_name(log_retention.dtype)}; give float32 or bfloat16"
        )
    if state is not None and (state.shape, state.dtype) != ((B, H, D, D), torch.float32):
        raise InputError(
            f"state has shape {tuple(state.shape)} and dtype {_name(state.dtype)};"
            f" give {(B, H, D, D)} in float32"
        )
    if p1.device.type == "cpu" and p1.dtype == torch.bfloat16:
        raise InputError(
            "Triton's interpreter multiplies the bit patterns of bfloat16; on a CPU give p1, p2"
            " and info in float16 or float32"
        )
    reason = why_unavailable(p1.device)
    if reason is not None:
        raise InputError(f"linear_relation cannot run on {p1.device}: {reason}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
