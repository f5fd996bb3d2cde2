"""Linear Relation in plain PyTorch, implemented in two ways (Section 5.2, Appendix A.4).

`linear_relation` is the definition, a recurrence over tokens. `chunked_linear_relation` unrolls it
into a sum over historical tokens inside each chunk. Both divide a coordinate by max(norm, 1e-12).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.errors import InputError
from relation.kernels import checks
from relation.kernels.documents import Documents, forget_at_starts
from relation.ops.attention import for_heads
from relation.ops.precision import without_autocast

CHUNK = 32  # a power of two


def _read_write(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float,
    state: Tensor | None,
    documents: Documents | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Check the inputs and return (read, write, information, g, C_0), FP32 at least.

    read is S p1-hat and write is S p2-hat (Eq. 14), so Self scales reading and writing. At the
    first token of a document g is -inf, which empties the state.
    """
    others = {"log_retention": log_retention} | ({} if state is None else {"state": state})
    checks.check_floating(**others)
    checks.check_groups(p1=p1, p2=p2, info=info)
    checks.check_device(p1, *others.values())
    checks.check_tau(tau)
    B, H, T, D = p1.shape
    shapes = {"log_retention": (B, H, T, D), "state": (B, H, D, D)}
    for name, x in others.items():
        if x.shape != shapes[name]:
            raise InputError(f"{name} has shape {tuple(x.shape)}; give {shapes[name]}")
    log_retention = forget_at_starts(documents, p1, log_retention, state)
    wide = torch.promote_types(p1.dtype, torch.float32)
    p2, info = (for_heads(x, H) for x in (p2, info))
    p1, p2 = p1.to(wide), p2.to(wide)
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (tau * math.sqrt(D)))  # (B, H, T, 1)
    C = p1.new_zeros(B, H, D, D) if state is None else state.to(wide)
    read, write = S * F.normalize(p1, dim=-1), S * F.normalize(p2, dim=-1)
    return read, write, info.to(wide), log_retention.to(wide), C


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
    """Return Linear Relation by tokens: Ask Self, Ask Others, Answer, Become Others (equation 16).

    p1, p2, info, tau: as in `full_relation`. log_retention: g = log alpha <= 0, (B, H, T, D), any
    floating dtype; -inf forgets everything. state: C after the preceding tokens, (B, H, D, D), the
    retained channel first; None: C = 0. documents: each starts with C = 0, so a state may not be
    given too. Returns y, (B, H, T, D) in info's dtype, and the final C. C and all sums are FP32
    (FP64 for FP64 inputs). Raises InputError for arguments that do not fit.
    """
    read, write, information, g, C = _read_write(p1, p2, info, log_retention, tau, state, documents)
    alpha = g.exp()
    exchange = []
    with without_autocast(p1):
        for t in range(p1.shape[2]):
            retained = alpha[:, :, t, :, None] * C  # Diag(alpha_t) C_{t-1}, (B, H, D, D)
            # Ask Others: E_t = retained^T read_t, (B, H, D).
            exchange.append((read[:, :, t, None, :] @ retained).squeeze(-2))
            # Become Others: C_t = retained + write_t I_t^T.
            C = torch.addcmul(retained, write[:, :, t, :, None], information[:, :, t, None, :])
    # Answer: Y_t = I_t + E_t.
    return (information + torch.stack(exchange, dim=2)).to(info.dtype), C


def _after(g: Tensor) -> Tensor:
    """For g (..., T, D), row j is g_{j+1} + ... + g_T: log retention from token j to the end."""
    return F.pad(g[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1))


def _within_chunks(read: Tensor, write: Tensor, information: Tensor, g: Tensor) -> Tensor:
    """Exchange of each token with the earlier tokens of its chunk. All tensors: (..., CHUNK, D).

    For tokens j < t exactly one block of 2, 4, ... or CHUNK tokens has j in its first half and t in
    its second. g_{j+1} + ... + g_t is a sum up to the block's middle plus a sum after it. Neither
    sum is positive, so write and read take their exponentials as factors. A difference of running
    sums from the chunk's start would lose the digits of a weak retention after a strong one.
    """
    exchange = torch.zeros_like(information)
    half = 1
    while half < CHUNK:
        halves = (-1, 2, half)  # of every block, so that [..., 0, :, :] are (..., blocks, half, D)
        to_middle, from_middle = g.unflatten(-2, halves).unbind(-3)
        w = write.unflatten(-2, halves)[..., 0, :, :] * _after(to_middle).exp()
        r = read.unflatten(-2, halves)[..., 1, :, :] * from_middle.cumsum(-2).exp()
        answer = (r @ w.transpose(-1, -2)) @ information.unflatten(-2, halves)[..., 0, :, :]
        # The first half of a block gets zeros: it reads nothing from this block.
        exchange = exchange + F.pad(answer, (0, 0, half, 0)).flatten(-3, -2)
        half *= 2
    return exchange


def chunked_linear_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    tau: float = 2.0,
    state: Tensor | None = None,
    *,
    documents: Documents | None = None,
) -> tuple[Tensor, Tensor]:
    """`linear_relation` by chunks: the expanded sum inside a chunk, the recurrence between chunks.

    Every exponent is a sum of g and never positive, so no exponential overflows.
    """
    read, write, information, g, C = _read_write(p1, p2, info, log_retention, tau, state, documents)
    T = p1.shape[2]
    with without_autocast(p1):
        # (B, H, T, D) to (B, H, chunks, CHUNK, D). The padding after the last token is 0: it reads,
        # writes and (g = 0) forgets nothing.
        read, write, values, g = (
            F.pad(x, (0, 0, 0, -T % CHUNK)).unflatten(2, (-1, CHUNK))
            for x in (read, write, information, g)
        )
        written = (write * _after(g).exp()).transpose(-1, -2) @ values  # (B, H, chunks, D, D)
        from_start = g.cumsum(-2).exp()
        before = []
        for n in range(g.shape[2]):
            before.append(C)
            C = torch.addcmul(written[:, :, n], from_start[:, :, n, -1, :, None], C)
        exchange = _within_chunks(read, write, values, g)
        exchange = exchange + (read * from_start) @ torch.stack(before, dim=2)
    return (information + exchange.flatten(2, 3)[:, :, :T]).to(info.dtype), C
