"""Causal softmax attention, the paper's baseline (MHA), and its flow (Section 1).

q, k and v are (B, H, T, D) in one floating dtype, q and k after RoPE; H counts heads. Each function
raises InputError for other or unequal shapes, an empty dimension, mixed dtypes or mixed devices.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.kernels.checks import check_states
from relation.ops.scores import scores


def causal_flow(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """The flow F = Softmax(U), U_ij = q_i . k_j / sqrt(D) for j <= i.

    q, k: (B, H, T, D). Returns (B, H, T, T), lower triangular, rows summing to 1. BF16 inputs
    round U to BF16; the softmax is FP32 (FP64 for FP64 inputs).
    """
    check_states(q=q, k=k)
    length = q.shape[2]
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores(q, k).masked_fill(future, -torch.inf).softmax(dim=-1)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Materialised MHA, Y = F V: q, k, v (B, H, T, D) to (B, H, T, D) in their dtype."""
    check_states(q=q, k=k, v=v)
    return causal_flow(q, k).to(v.dtype) @ v


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's FlashAttention, forced: arguments and result of `causal_attention`.

    Where PyTorch has no such kernel for the inputs (on a GPU, FP32 ones) it raises RuntimeError;
    another kernel never takes its place.
    """
    check_states(q=q, k=k, v=v)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """cuDNN's fused attention, forced: as `flash_attention`, on a GPU alone."""
    check_states(q=q, k=k, v=v)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
