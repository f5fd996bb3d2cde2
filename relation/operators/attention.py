"""Causal softmax attention, the paper's baseline (MHA), and its flow."""

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def causal_flow(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Normalised causal flow (B, H, T, T) of q, k (B, H, T, D), in FP32 (FP64 for FP64)."""
    length = q.shape[-2]
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = (q @ k.transpose(-1, -2)).to(wide) / math.sqrt(q.shape[-1])
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(future, -torch.inf).softmax(dim=-1)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Materialised MHA: q, k, v (B, H, T, D) to (B, H, T, D) in v's dtype."""
    return causal_flow(q, k).to(v.dtype) @ v


def flash_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """PyTorch's FlashAttention, forced: an error, never another kernel, where it cannot run."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def cudnn_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """cuDNN's fused attention, forced."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
