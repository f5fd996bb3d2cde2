"""Causal softmax attention, the paper's baseline MHA (Section 1), and the scores U.

The option `null` adds a null token with a zero key and value (softmax off by one). It scales each
row of the softmax by sigmoid(LSE of the row's scores), so a row may attend to nothing.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from relation.errors import InputError
from relation.kernels.checks import check_groups, check_states
from relation.kernels.documents import Documents, check_documents, unseen
from relation.ops.precision import without_autocast


def scores(p1: Tensor, p2: Tensor) -> Tensor:
    """Return U = p1 p2^T / sqrt(D) (equation 1): (B, H, n, T), FP32 at least.

    p1: (B, H, n, D), q in MHA. p2: (B, H or fewer, T, D), k in MHA. The product has the inputs'
    dtype, but FP16 inputs are multiplied in FP32: the product may exceed 65504, FP16's largest.
    """
    wide = torch.promote_types(p1.dtype, torch.float32)
    if p1.dtype == torch.float16:
        p1, p2 = p1.to(wide), p2.to(wide)
    U = shared_matmul(p1, p2.transpose(-1, -2)).to(wide)
    return U / math.sqrt(p1.shape[-1])


def for_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat each head of x, (B, H / n, T, D), n times in a row: (B, H, T, D)."""
    n = heads // x.shape[1]
    return x if n == 1 else x.repeat_interleave(n, dim=1)


def shared_matmul(a: Tensor, x: Tensor) -> Tensor:
    """Return a @ `for_heads(x, H)` for a (B, H, n, K) and x (B, H or fewer, K, D), without a copy.

    The rows of all heads of a that read the same head of x form one matrix. The product has the
    inputs' dtype, also under autocast.
    """
    members = a.shape[1] // x.shape[1]  # heads of a that read one head of x
    with without_autocast(a):
        if members == 1:
            return a @ x
        rows = a.unflatten(1, (-1, members)).flatten(2, 3)  # (B, H / members, members n, K)
        return (rows @ x).unflatten(2, (members, -1)).flatten(1, 2)


def softmax(U: Tensor, null: bool = False) -> Tensor:
    """Softmax over the last dimension. `null` adds a logit of 0 and drops its probability."""
    if not null:
        return U.softmax(dim=-1)
    return F.pad(U, (1, 0)).softmax(dim=-1)[..., 1:]


def causal_flow(
    q: Tensor, k: Tensor, *, null: bool = False, documents: Documents | None = None
) -> Tensor:
    """Return the flow F = Softmax(U) over j <= i: (B, H, T, T), FP32 at least.

    Each row sums to 1. With `null` it sums to less, and the rest flows to the null token.
    """
    check_groups(q=q, k=k)
    check_documents(documents, q)
    return softmax(scores(q, k).masked_fill(unseen(documents, q), -torch.inf), null)


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, *, null: bool = False, documents: Documents | None = None
) -> Tensor:
    """Return MHA, Y = F V, (B, H, T, D) in the dtype of q, k and v. Materialises F."""
    check_groups(q=q, k=k, v=v)
    flow = causal_flow(q, k, null=null, documents=documents)
    return shared_matmul(flow.to(v.dtype), v)


def attention_step(
    q: Tensor, k: Tensor, v: Tensor, *, null: bool = False, visible: Tensor | None = None
) -> Tensor:
    """Return the last n rows of `causal_attention`, those of n new tokens: (B, H, n, D).

    q: (B, H, n, D), the new tokens. k, v: (B, H or a divisor of it, T, D), all tokens, with the new
    ones last. visible: which tokens each new one sees, bool (n, T) or (B, 1, n, T); None: causal.
    """
    visible = check_step("q", q, visible, k=k, v=v)
    flow = softmax(scores(q, k).masked_fill(~visible, -torch.inf), null)
    return shared_matmul(flow.to(v.dtype), v)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    kernel: SDPBackend,
    null: bool = False,
    documents: Documents | None = None,
) -> Tensor:
    """`causal_attention` by the named PyTorch kernel, never by another one.

    Documents need FlashAttention without `null`, else InputError. A GPU runs its variable-length
    kernel, a CPU one call per document. PyTorch raises RuntimeError for inputs that do not fit it.
    """
    check_groups(q=q, k=k, v=v)
    check_documents(documents, q)
    if documents is not None:
        if kernel != SDPBackend.FLASH_ATTENTION or null:
            name = "FlashAttention with a null logit" if null else kernel.name
            raise InputError(f"{name} takes no documents in PyTorch; use backend 'reference'")
        return _flash_by_document(q, k, v, documents)
    heads = q.shape[1]
    if kernel == SDPBackend.EFFICIENT_ATTENTION:  # takes no shared heads
        k, v = for_heads(k, heads), for_heads(v, heads)
    if null:
        # The null token comes first, so every token sees it. Its own row is dropped at the end.
        q, k, v = (F.pad(x, (0, 0, 1, 0)) for x in (q, k, v))
    with sdpa_kernel(kernel):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != heads)
    return y[:, :, 1:] if null else y


def _flash_by_document(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    # All rows as one sequence, (B T, H, D), in which every document is an interval.
    rows = [for_heads(x, q.shape[1]).transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    y = _rows_on_gpu(*rows, documents) if q.is_cuda else _rows_on_cpu(*rows, documents)
    return y.unflatten(0, (q.shape[0], -1)).transpose(1, 2)


def _rows_on_gpu(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn  # here, because it imports the compiler

    width, offsets, longest = q.shape[-1], documents.offsets, documents.longest
    options = {"scale": width**-0.5, "window_size": (-1, 0)}
    if width % 8:  # the kernel needs multiples of 8; zero channels change no score
        q, k, v = (F.pad(x, (0, -width % 8)) for x in (q, k, v))
    return varlen_attn(q, k, v, offsets, offsets, longest, longest, **options)[..., :width]


def _rows_on_cpu(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    sizes = [size for size in documents.offsets.diff().tolist() if size]  # `bounded`: some are 0
    # Each of q, k and v as a list of its documents, (1, H, size, D).
    split = (x.transpose(0, 1)[None].split(sizes, dim=2) for x in (q, k, v))
    kernel = SDPBackend.FLASH_ATTENTION
    parts = [fused_attention(*document, kernel=kernel) for document in zip(*split, strict=True)]
    return torch.cat(parts, dim=2)[0].transpose(0, 1)


def check_step(name: str, block: Tensor, visible: Tensor | None, **history: Tensor) -> Tensor:
    """Raise InputError for a step that does not fit; return `visible`, for None the causal (n, T).

    block: (B, H, n, D). history: (B, H or fewer, T, D) each, with the block's tokens last.
    """
    check_states(**history)
    total = next(iter(history.values())).shape[2]
    if block.ndim != 4 or not 0 < block.shape[2] <= total:
        raise InputError(
            f"{name} has shape {tuple(block.shape)}; give (B, H, n, D) with 1 <= n <= {total}, "
            "the number of all tokens, the new ones included"
        )
    n = block.shape[2]
    last = {key: x[:, :, total - n :] for key, x in history.items()}  # the block's tokens
    check_groups(**{name: block}, **last)
    if visible is None:
        return torch.ones(n, total, dtype=torch.bool, device=block.device).tril(total - n)
    fits = visible.ndim in (2, 4) and visible.shape[-2:] == (n, total)
    fits = fits and all(a in (1, b) for a, b in zip(visible.shape[:-2], block.shape, strict=False))
    if visible.dtype != torch.bool or not fits:
        raise InputError(
            f"visible is {visible.dtype}, {tuple(visible.shape)}; give bool, ({n}, {total}) or "
            f"(B, 1, {n}, {total})"
        )
    return visible
