"""Causal softmax attention, the paper's baseline (MHA), and its flow (Section 1).

q, k and v are (B, H, T, D) in one floating dtype, q and k after RoPE; H counts heads, and k and v
may have fewer, a divisor of H, each shared by neighbouring heads of q. With `documents` a token
sees its own alone. Each function raises InputError for other or unequal shapes, an empty dimension,
mixed dtypes or mixed devices.
"""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.errors import InputError
from relation.kernels.checks import check_groups
from relation.kernels.documents import Documents, unseen
from relation.ops.scores import for_heads, scores


def causal_flow(
    q: torch.Tensor, k: torch.Tensor, *, documents: Documents | None = None
) -> torch.Tensor:
    """The flow F = Softmax(U), U_ij = q_i . k_j / sqrt(D) for j <= i.

    q: (B, H, T, D), k alike or of fewer heads. Returns (B, H, T, T), lower triangular, rows summing
    to 1. BF16 inputs round U to BF16; the softmax is FP32 (FP64 for FP64 inputs).
    """
    _check((q, k), documents)
    return scores(q, k).masked_fill(unseen(documents, q), -torch.inf).softmax(dim=-1)


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, documents: Documents | None = None
) -> torch.Tensor:
    """Materialised MHA, Y = F V: q, k, v (B, H, T, D) to (B, H, T, D) in their dtype."""
    _check((q, k, v), documents)
    return causal_flow(q, k, documents=documents).to(v.dtype) @ for_heads(v, q.shape[1])


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, documents: Documents | None = None
) -> torch.Tensor:
    """PyTorch's FlashAttention, forced: arguments and result of `causal_attention`.

    With documents it is the kernel of sequences of unequal length on a GPU, and one call a document
    on a CPU. Where PyTorch has no such kernel for the inputs (on a GPU, FP32 ones) it raises
    RuntimeError; another kernel never takes its place.
    """
    _check((q, k, v), documents)
    if documents is None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
            )
    # As rows of one sequence, (B T, H, D): there every document is an interval.
    rows = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    y = (_flash_rows_on_gpu if q.is_cuda else _flash_rows_on_cpu)(*rows, documents)
    return y.unflatten(0, (q.shape[0], -1)).transpose(1, 2)


def _flash_rows_on_gpu(q, k, v, documents: Documents) -> torch.Tensor:
    # Imported on use: it brings the compiler along.
    from torch.nn.attention.varlen import varlen_attn

    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    offsets, longest = documents.offsets, documents.longest
    return varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=(-1, 0))


def _flash_rows_on_cpu(q, k, v, documents: Documents) -> torch.Tensor:
    sizes = [size for size in documents.offsets.diff().tolist() if size]
    rows = (x.transpose(0, 1)[None].split(sizes, dim=2) for x in (q, k, v))
    parts = [flash_attention(*document) for document in zip(*rows, strict=True)]
    return torch.cat(parts, dim=2)[0].transpose(0, 1)


def cudnn_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, documents: Documents | None = None
) -> torch.Tensor:
    """cuDNN's fused attention, forced: as `flash_attention`, on a GPU alone and without documents.

    Raises InputError for documents, for which PyTorch does not call cuDNN.
    """
    _check((q, k, v), documents)
    if documents is not None:
        raise InputError("cuDNN's attention takes no documents in PyTorch; use the backend flash")
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1]
        )


def _check(states: tuple[torch.Tensor, ...], documents: Documents | None) -> None:
    check_groups(**dict(zip("qkv", states, strict=False)))
    if documents is not None:
        documents.check(states[0])
