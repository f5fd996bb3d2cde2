"""FlashRelation in plain PyTorch: Full Relation by tiles, without a T x T matrix.

The forward pass is the scan over historical Exchange (Eq. 11 to 13, Appendix A.3); `normalizer` is
the paper's l. The backward pass is the credit decomposition of Appendix A.1.7, written by hand.
CPUs run this code. The Triton kernels compute the same; kernels/README.md derives the differences.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.kernels.documents import Documents, token_counts
from relation.ops.full import check_relation
from relation.ops.precision import cast, once_differentiable, without_autocast

TILE = 128


def _tiles(length: int, starts: Tensor | None) -> Iterator[tuple[slice, list[slice]]]:
    """Yield each tile of tokens with the list of tiles that hold history of some of its tokens.

    starts: (B, 1, 1, T), the first token of each token's document; None: each row is one document.
    While torch.compile traces, starts has no values, so the list holds all earlier tiles.
    """
    skips = starts is not None and not torch.compiler.is_compiling()
    tiles = [slice(n, min(n + TILE, length)) for n in range(0, length, TILE)]
    for n, rows in enumerate(tiles):
        first = int(starts[..., rows].min()) if skips else 0
        yield rows, tiles[first // TILE : n + 1]


def _only_history(tile: Tensor, rows: slice, columns: slice, starts: Tensor | None, absent: float):
    """Write `absent`, in place, to entries (i, j) of a tile if j is not in the history of i."""
    if rows == columns:
        no_history = torch.ones(tile.shape[-2:], dtype=torch.bool, device=tile.device).triu()
        tile = tile.masked_fill_(no_history, absent)
    if starts is None:
        return tile
    j = torch.arange(columns.start, columns.stop, device=tile.device)
    return tile.masked_fill_(j < starts[..., rows, None], absent)


def _scan_history(
    p1: Tensor, p2: Tensor, info: Tensor, starts: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """Return Exchange's log-normaliser L, (..., T), and mean information zbar, like p1 (Eq. 12).

    The first token of a document has no history: L = -inf and zbar = 0.
    """
    scale, tiny = 1 / math.sqrt(p1.shape[-1]), torch.finfo(p1.dtype).tiny
    L, zbar = p1.new_empty(p1.shape[:-1]), torch.empty_like(p1)
    for rows, history in _tiles(p1.shape[-2], starts):
        p1_rows = p1[..., rows, :] * scale
        m = p1.new_full(p1_rows.shape[:-1], -torch.inf)
        normalizer, z = torch.zeros_like(m), torch.zeros_like(p1_rows)
        for columns in history:  # m', l' and z' of Eq. 11
            U = p1_rows @ p2[..., columns, :].transpose(-1, -2)  # (..., rows, columns)
            E = _only_history(F.silu(U) if silu else U, rows, columns, starts, -torch.inf)
            m_new = torch.maximum(m, E.amax(-1))
            # A row without history keeps m = -inf, and -inf - (-inf) is not a number.
            anchor = m_new.masked_fill(m_new.isneginf(), 0)
            weight = E.sub_(anchor[..., None]).exp_()
            rescale = (m - anchor).exp()
            normalizer = rescale * normalizer + weight.sum(-1)
            z = rescale[..., None] * z + weight @ info[..., columns, :]
            m = m_new
        L[..., rows] = m + normalizer.log()
        zbar[..., rows, :] = z / normalizer.clamp(min=tiny)[..., None]
    return L, zbar


def _masses(gap: Tensor) -> tuple[Tensor, Tensor]:
    """Return g = sigma(A - S) and F_ii = sigma(S - A), both (..., T, 1), from A - S, (..., T).

    Computing F_ii as 1 - g would lose the digits of a small F_ii.
    """
    return torch.sigmoid(gap)[..., None], torch.sigmoid(-gap)[..., None]


class _TiledRelation(torch.autograd.Function):
    """Scan and backward. p1: (B, groups, heads per group, T, D), p2 and info: 1 head per group.

    log_i and starts are (T,) and None, with documents (B, 1, 1, T) both.
    """

    @staticmethod
    def forward(ctx, p1, p2, info, lam, tau, transport_self, silu, log_i, starts):
        wide = torch.promote_types(p1.dtype, torch.float32)
        p1_wide, p2_wide, info_wide, lam_wide = (x.to(wide) for x in (p1, p2, info, lam))
        L, zbar = _scan_history(p1_wide, p2_wide, info_wide, starts, silu)
        S = torch.sigmoid((p1_wide * p2_wide).sum(-1) / (tau * math.sqrt(p1.shape[-1])))
        gap = L - lam_wide * log_i - S  # A - S
        g, F_ii = _masses(gap)
        # Eq. 13
        y = g * zbar + F_ii * info_wide if transport_self else g * zbar
        ctx.save_for_backward(p1, p2, info, lam, L, zbar, S, gap, log_i)
        ctx.tau, ctx.transport_self, ctx.silu, ctx.starts = tau, transport_self, silu, starts
        return cast(y, info.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        p1, p2, info, lam, L, zbar, S, gap, log_i = ctx.saved_tensors
        p1, p2, info, G = (x.to(zbar.dtype) for x in (p1, p2, info, dy))
        scale = 1 / math.sqrt(p1.shape[-1])
        g, F_ii = _masses(gap)
        gG = g * G

        displacement = zbar - info if ctx.transport_self else zbar
        dA = (F_ii * gG * displacement).sum(-1)
        dlam = -(dA * log_i).sum()

        # dL/dS_i = -dL/dA_i reaches both coordinates of token i through U_ii.
        dU_self = (-dA * S * (1 - S) * (scale / ctx.tau))[..., None]
        dp1, dp2 = dU_self * p2, (dU_self * p1).sum(2, keepdim=True)
        dinfo = torch.zeros_like(info)
        if ctx.transport_self:
            dinfo += (F_ii * G).sum(2, keepdim=True)

        # dL/dE_ij = pi_ij (g_i G_i . I_j - offset_i) with offset_i = g_i G_i . zbar_i - dL/dA_i.
        offset = (gG * zbar).sum(-1) - dA
        for rows, history in _tiles(p1.shape[-2], ctx.starts):
            p1_rows, gG_rows = p1[..., rows, :] * scale, gG[..., rows, :]
            for columns in history:
                p2_columns = p2[..., columns, :]
                E = U = p1_rows @ p2_columns.transpose(-1, -2)
                if ctx.silu:
                    sigma = torch.sigmoid(U)
                    E = U.mul_(sigma)  # in U's memory
                pi = _only_history((E - L[..., rows, None]).exp_(), rows, columns, ctx.starts, 0.0)
                dinfo[..., columns, :] += (pi.transpose(-1, -2) @ gG_rows).sum(2, keepdim=True)
                dE = gG_rows @ info[..., columns, :].transpose(-1, -2)
                dU = dE.sub_(offset[..., rows, None]).mul_(pi)
                if ctx.silu:
                    # SiLU'(U) = sigma + U sigma (1 - sigma), and U sigma is E.
                    slope = E.sub_(E * sigma).add_(sigma)
                    dU = dE.mul_(slope)
                dp1[..., rows, :] += (dU @ p2_columns) * scale
                dp2[..., columns, :] += (dU.transpose(-1, -2) @ p1_rows).sum(2, keepdim=True)
        dlam = dlam.to(lam.dtype).reshape(lam.shape)
        dp1, dp2, dinfo = (x.to(dy.dtype) for x in (dp1, dp2, dinfo))
        return dp1, dp2, dinfo, dlam, None, None, None, None, None


def tiled_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    tau: float = 2.0,
    *,
    transport_self: bool = True,
    silu: bool = True,
    documents: Documents | None = None,
) -> Tensor:
    """`full_relation` by tiles (Section 5.1), in memory linear in T; differentiable once.

    Skips tiles without a token of the row's document. Does not copy p2 and info for shared heads.
    """
    check_relation(lam, tau, documents, p1=p1, p2=p2, info=info)
    wide = torch.promote_types(p1.dtype, torch.float32)
    log_i, starts = token_counts(documents, p1, wide).log(), None
    if documents is not None:
        log_i, starts = log_i[:, None], documents.starts[:, None, None]
    with without_autocast(p1):
        y = _TiledRelation.apply(
            p1.unflatten(1, (p2.shape[1], -1)), p2.unflatten(1, (-1, 1)),
            info.unflatten(1, (-1, 1)), lam, tau, transport_self, silu, log_i, starts,
        )  # fmt: skip
    return y.flatten(1, 2)
