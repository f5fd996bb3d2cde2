"""FlashRelation beside FlashAttention, cuDNN, FlexAttention and the materialised operator."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from relation.bench.cute import build_cute_relation, cute_attention, why_no_cute
from relation.bench.peers import (
    AsItIs,
    Benchmark,
    Peer,
    Side,
    backend_peer,
    micro_batch_shapes,
)
from relation.ops import causal_attention, full_relation
from relation.verify.inputs import COORDINATES, Operator, Shape, draw

_RELATION = (*COORDINATES, "lam")


def causal_blocks(length: int, device: torch.device) -> BlockMask:
    """The blocks of a causal (T, T) matrix, which are what FlexAttention visits."""

    def causal(b, h, i, j):
        return i >= j

    return create_block_mask(causal, None, None, length, length, device=device)


def flex_relation(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    lam: Tensor,
    log_i: Tensor,
    blocks: BlockMask,
    tau: float = 2.0,
) -> Tensor:
    """Full Relation as a score_mod of FlexAttention (Section 3.1), lam frozen.

    p1, p2, info: (B, H, T, D), any floating dtype; lam: scalar tensor that requires no gradient;
    log_i: (T,), the logarithms of 1 to T; blocks: `causal_blocks`. Returns (B, H, T, D).
    """

    def relation(score, b, h, i, j):
        own = torch.sigmoid(score / tau)
        return torch.where(i == j, own, F.silu(score) - lam * log_i[i])

    return flex_attention(p1, p2, info, score_mod=relation, block_mask=blocks)


def _build_flex(shape: Shape, device: torch.device) -> Operator:
    blocks = causal_blocks(shape.length, device)
    # Inputs of what is compiled: FlexAttention takes no tensor computed inside it.
    log_i = torch.arange(1, shape.length + 1, device=device, dtype=torch.float32).log()
    compiled = torch.compile(flex_relation, dynamic=False)

    def call(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor) -> Tensor:
        return compiled(p1, p2, info, lam.detach(), log_i, blocks)

    return call


def _build_compiled(shape: Shape, device: torch.device) -> Operator:
    return torch.compile(full_relation, dynamic=False)


def _why_no_flex(device: torch.device) -> str | None:
    return None if device.type == "cuda" else "it has no backward on a CPU"


def _passes(shape: Shape, dtype: torch.dtype, device: torch.device) -> str:
    from relation.kernels.flash_relation.hopper import describe_passes

    return describe_passes(device, dtype, shape.width)


_MATERIALISED = backend_peer("materialised", "full", "reference", _RELATION, full_relation)
_FLASH = Side("flash-relation", "full", {"full": "flash"})
_TILED = Side("tiled", "full", {"full": "tiled"})
_MATERIALISED_SIDE = Side("materialised", "full", {"full": "reference"})

# By kind of device.
BENCHMARKS = {
    "cuda": Benchmark(
        title="FlashRelation and its peers",
        subject="flash-relation",
        tells=_passes,
        shapes=micro_batch_shapes,
        draw=draw,
        peers=(
            backend_peer("flash-relation", "full", "flash", _RELATION, full_relation),
            backend_peer("flash-attention-2", "mha", "flash", COORDINATES, causal_attention),
            backend_peer("cudnn-attention", "mha", "cudnn", COORDINATES, causal_attention),
            Peer(
                "flash-attention-cute",
                COORDINATES,
                AsItIs(cute_attention),
                causal_attention,
                why_unavailable=why_no_cute,
            ),
            Peer("flex-attention", _RELATION, _build_flex, full_relation, ("lam",), _why_no_flex),
            Peer(
                "cute-relation",
                _RELATION,
                build_cute_relation,
                full_relation,
                ("lam",),
                why_no_cute,
            ),
            _MATERIALISED,
            Peer("materialised-compiled", _RELATION, _build_compiled, full_relation),
        ),
        steps={
            "matched": (
                _FLASH,
                Side("8-documents", "full", {"full": "flash"}, documents=8),
                Side("flash-attention-2", "mha", {"mha": "flash"}),
                Side("cudnn-attention", "mha", {"mha": "cudnn"}),
            ),
            "fixed": (
                _FLASH,
                _MATERIALISED_SIDE,
                Side("materialised-compiled", "full", {"full": "materialised"}),
            ),
        },
    ),
    "cpu": Benchmark(
        title="Tiled Full Relation and its peers in plain PyTorch on a CPU; no kernel is measured",
        subject="tiled",
        shapes=micro_batch_shapes,
        draw=draw,
        peers=(
            backend_peer("tiled", "full", "tiled", _RELATION, full_relation),
            backend_peer("attention", "mha", "reference", COORDINATES, causal_attention),
            _MATERIALISED,
        ),
        steps={
            "matched": (_TILED, Side("attention", "mha", {"mha": "reference"})),
            "fixed": (_TILED, _MATERIALISED_SIDE),
        },
    ),
}
