"""Causal attention and Full Relation by FlashAttention's CuTe kernels.

That library is optional: where it is missing, its peers say so.
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.verify.inputs import Operator, Shape

# On sm_90 flash-attn-4 4.0.0b36 returns a wrong dq at 48, 80 and all other widths whose next
# multiple of 16 is not one of 32 (its pull request 2896).
_WIDTH_MULTIPLE = 32


def cute_attention(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    """Causal attention by the CuTe kernels, which take (B, T, H, D), of (B, H, T, D).

    q, k, v: FP16 or BF16, padded with zeros here to a D that the kernels are right at. given: what
    else `flash_attn_func` takes, such as a score function.
    """
    from flash_attn.cute import flash_attn_func

    D = q.shape[-1]
    by_token = (F.pad(x.transpose(1, 2), (0, -D % _WIDTH_MULTIPLE)) for x in (q, k, v))
    y = flash_attn_func(*by_token, softmax_scale=D**-0.5, causal=True, **given)[0]
    return y[..., :D].transpose(1, 2)


def relation_scores(cute: ModuleType, tau: float = 2.0) -> tuple[Callable, Callable]:
    """Full Relation's score function and its backward (Section 3.1), as the kernels call them.

    cute: `cutlass.cute`, or a module with the same `where` and `math.tanh`. The first function
    turns U_ij = p1_i . p2_j / sqrt(D) into sigmoid(U_ii / tau) or SiLU(U_ij) - lam log i; the one
    tensor that it reads, (T,), is lam log i. The second takes the gradient with respect to that and
    returns the one with respect to U.
    """

    def gate(own: Any, score: Any) -> Any:
        # One tanh serves both: sigmoid(x) = (1 + tanh(x/2)) / 2.
        half = cute.where(own, score * (0.5 / tau), score * 0.5)
        return 0.5 * cute.math.tanh(half, fastmath=True) + 0.5

    def forward(score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        own = q_idx == kv_idx
        s = gate(own, score)
        return cute.where(own, s, score * s - aux_tensors[0][q_idx[0]])

    def backward(grad, score, b, h, q_idx, kv_idx, seqlen_info, aux_tensors):
        own = q_idx == kv_idx
        s = gate(own, score)
        slope = cute.where(own, s * (1.0 - s) * (1.0 / tau), s * (1.0 + score * (1.0 - s)))
        return grad * slope

    return forward, backward


def build_cute_relation(shape: Shape, device: torch.device) -> Operator:
    """Full Relation as a score function of the CuTe kernels, lam frozen; p1, p2, info, lam to Y."""
    import cutlass.cute as cute

    # Made once: the library compiles anew for another function.
    forward, backward = relation_scores(cute)
    log_i = torch.arange(1, shape.length + 1, device=device, dtype=torch.float32).log()

    def call(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
        penalty = lam.detach() * log_i
        mods = {"score_mod": forward, "score_mod_bwd": backward, "aux_tensors": [penalty]}
        return cute_attention(p1, p2, info, **mods)

    return call


def why_no_cute(device: torch.device) -> str | None:
    """Why a device cannot run the CuTe kernels, or None where it can."""
    try:
        found = importlib.util.find_spec("flash_attn.cute")
    except ImportError:  # flash_attn itself is missing
        found = None
    if found is None:
        return "FlashAttention's CuTe kernels are not installed; pip install flash-attn-4"
    return None if device.type == "cuda" else f"it needs a GPU, and this device is {device}"
