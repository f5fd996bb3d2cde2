"""Full Relation by FlexAttention, for head widths and GPUs that FlashRelation does not take.

FlexAttention returns, for each row, the mean information of its history and its log-normaliser
(Eq. 12). Self and the count calibration are added outside FlexAttention (Eq. 13), so lambda's
gradient costs nothing.
"""

from functools import lru_cache
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.kernels.documents import Documents, token_counts
from relation.ops.attention import for_heads
from relation.ops.full import check_relation
from relation.ops.precision import without_autocast

_MASKS: "WeakKeyDictionary[Documents, object]" = WeakKeyDictionary()


def _exchange(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return F.silu(score)


@lru_cache(maxsize=8)
def _row_mask(length: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(lambda b, h, i, j: j < i, None, None, length, length, device)


def _history_mask(p1: Tensor, documents: Documents | None):
    """The block mask of the history, made once per length, or once per `documents`."""
    from torch.nn.attention.flex_attention import create_block_mask

    batch, length = p1.shape[0], p1.shape[2]
    # Autograd saves the mask, so one that an evaluation made must not be an inference tensor.
    with torch.inference_mode(False):
        if documents is None:
            return _row_mask(length, p1.device)
        if documents not in _MASKS:
            starts = documents.starts

            def history(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return (j < i) & (j >= starts[b, i])

            _MASKS[documents] = create_block_mask(history, batch, None, length, length, p1.device)
        return _MASKS[documents]


@lru_cache(maxsize=1)
def _compiled():
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _kernel_options(p1: Tensor) -> dict[str, int] | None:
    """Options for heads wider than 256, which overflow shared memory by default; else None.

    One stage of the default 64 rows and 32 columns takes 128 KiB at 512 channels of 16 bits.
    """
    if not p1.is_cuda or p1.shape[3] <= 256:
        return None
    room = torch.cuda.get_device_properties(p1.device).shared_memory_per_block_optin
    small = {"fwd_BLOCK_M": 32, "fwd_BLOCK_N": 16} if room <= 2**17 else {}
    return {"fwd_num_stages": 1} | small


def flex_relation(
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
    """`full_relation` by FlexAttention, on a CUDA GPU in 16 bits or FP32; differentiable once.

    On a CPU FlexAttention has no backward pass and materialises the scores.
    """
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    check_relation(lam, tau, documents, p1=p1, p2=p2, info=info)
    wide = torch.promote_types(p1.dtype, torch.float32)
    # Uncompiled, FlexAttention materialises the scores.
    call = _compiled() if p1.is_cuda and not torch.compiler.is_compiling() else flex_attention
    with without_autocast(p1):
        zbar, aux = call(
            p1, p2, info, _exchange if silu else None, _history_mask(p1, documents),
            enable_gqa=p1.shape[1] != p2.shape[1], kernel_options=_kernel_options(p1),
            return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        p2, info_wide = (for_heads(x, p1.shape[1]).to(wide) for x in (p2, info))
        S = torch.sigmoid((p1.to(wide) * p2).sum(-1) / (tau * p1.shape[-1] ** 0.5))  # (B, H, T)
        i = token_counts(documents, p1, wide)
        # The first token has no history, so its A is -inf and g is 0.
        A = torch.where(i == 1, -torch.inf, aux.lse.to(wide) - lam.to(wide) * i.log())
        g, F_ii = torch.sigmoid(A - S)[..., None], torch.sigmoid(S - A)[..., None]
        y = g * zbar.to(wide)
        return (y + F_ii * info_wide if transport_self else y).to(info.dtype)
