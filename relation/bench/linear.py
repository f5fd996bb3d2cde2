"""Linear Relation beside flash-linear-attention's kernels and the chunked form in plain PyTorch.

That library is optional: where it is missing, its peers say so. Each has the definition of what it
computes.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.bench.peers import (
    AsItIs,
    Benchmark,
    Peer,
    Side,
    Systems,
    micro_batch_shapes,
    shape_of,
)
from relation.nn import Decoder
from relation.nn.norm import Normed
from relation.ops import chunked_linear_relation, get_backend, linear_relation
from relation.variants import ModelConfig
from relation.verify.inputs import COORDINATES, Inputs, Operator, Shape, stored_by_token

RELATION = (*COORDINATES, "log_retention")
_FORGETFUL = (*COORDINATES, "forgetting")
_ATTENTION = ("read", "write", "info", "log_retention")
# A definition that goes token by token takes a second for a thousand of them.
_CHECKED_BY_RECURRENCE = 1024
_LONGEST_EAGER = 4096
# The paper's longest: an operator beside its peers, which are made for such lengths.
_LONGEST_SHAPE = 65536


def _output_of(form: Callable[..., tuple[Tensor, Tensor]], *given: Tensor) -> Tensor:
    """y of a form of Linear Relation, without the final state that it returns besides."""
    return form(*given)[0]


_FLASH = get_backend("linear", "flash")
_RECURRENT = partial(_output_of, linear_relation)
chunked_output = partial(_output_of, chunked_linear_relation)


def coordinates(p1: Tensor, p2: Tensor, tau: float = 2.0) -> tuple[Tensor, Tensor]:
    """S p1-hat and S p2-hat, what a token reads and writes with (Section 5.2; Appendix A.4).

    p1, p2: (B, H, T, D), any floating dtype, in which both are returned; formed in FP32 at least.
    """
    wide = torch.promote_types(p1.dtype, torch.float32)
    # Stored by token, as the kernels read: another order would cost copies of what is passed on.
    a, b = (p.transpose(1, 2).to(wide) for p in (p1, p2))
    S = torch.sigmoid((a * b).sum(-1, keepdim=True) / (tau * math.sqrt(p1.shape[-1])))
    read, write = S * F.normalize(a, dim=-1), S * F.normalize(b, dim=-1)
    return read.to(p1.dtype).transpose(1, 2), write.to(p1.dtype).transpose(1, 2)


def answer(read: Tensor, write: Tensor, info: Tensor, attended: Tensor) -> Tensor:
    """y = I + E of Linear Relation from gated linear attention, whose sum has the token itself.

    All (B, H, T, D). E is `attended` less that term, (read . write) I.
    """
    wide = torch.promote_types(info.dtype, torch.float32)
    r, w, i, e = (x.transpose(1, 2).to(wide) for x in (read, write, info, attended))
    itself = (r * w).sum(-1, keepdim=True)
    return (e + (1 - itself) * i).to(info.dtype).transpose(1, 2)


def gated_attention(
    read: Tensor,
    write: Tensor,
    info: Tensor,
    log_retention: Tensor,
    strength: Tensor | None = None,
) -> Tensor:
    """Gated linear attention, or with a strength the gated delta rule, one token at a time.

    C_t = Diag(alpha_t) C_{t-1} + w_t I_t^T and C_t^T r_t, all (B, H, T, D), one floating dtype;
    log_retention is log alpha. Unlike Linear Relation's, the state that a token reads holds what it
    wrote. With strength (B, H, T), token t writes strength_t (I_t - what its w_t already reads).
    """
    C = info.new_zeros(*info.shape[:2], info.shape[-1], info.shape[-1])
    attended = []
    for t in range(info.shape[2]):
        r, w, written = read[:, :, t], write[:, :, t], info[:, :, t, None]
        C = log_retention[:, :, t].exp()[..., None] * C
        if strength is not None:
            written = strength[:, :, t, None, None] * (written - w[..., None, :] @ C)
        C = C + w[..., None] * written
        attended.append((r[..., None, :] @ C).squeeze(-2))
    return torch.stack(attended, dim=2)


def _kernel(module: str, name: str) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A function of flash-linear-attention, imported without the package's layers and models.

    Where those are installed, the package imports them, and with them transformers, which no kernel
    needs. None in `sys.modules` stands for a module that is not installed, which it accepts.
    """
    hidden = [m for m in ("fla.layers", "fla.models") if m not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        return getattr(importlib.import_module(module), name)
    finally:
        for m in hidden:
            del sys.modules[m]


def _build_alone(module: str, name: str, shape: Shape, device: torch.device) -> Operator:
    """flash-linear-attention's kernel, which takes (B, T, H, D), as a function of (B, H, T, D)."""
    kernel = _kernel(module, name)

    def attend(*inputs: Tensor) -> Tensor:
        return kernel(*(x.transpose(1, 2) for x in inputs), scale=1.0)[0].transpose(1, 2)

    return attend


_build_gla_alone = partial(_build_alone, "fla.ops.gla", "chunk_gla")


def relation_by_attention(
    p1: Tensor,
    p2: Tensor,
    info: Tensor,
    log_retention: Tensor,
    attend: Operator,
    before: Callable[..., tuple[Tensor, Tensor]] = coordinates,
    after: Operator = answer,
) -> Tensor:
    """Linear Relation around a kernel of gated linear attention; all (B, H, T, D).

    attend: as `gated_attention`; before and after: `coordinates` and `answer`, or what
    torch.compile makes of them.
    """
    read, write = before(p1, p2)
    return after(read, write, info, attend(read, write, info, log_retention))


def _build_gla(shape: Shape, device: torch.device) -> Operator:
    # Not one graph: the kernel keeps itself out of torch.compile.
    before, after = (torch.compile(f, dynamic=False) for f in (coordinates, answer))
    attend = _build_gla_alone(shape, device)
    return partial(relation_by_attention, attend=attend, before=before, after=after)


def _why_no_fla(device: torch.device) -> str | None:
    if importlib.util.find_spec("fla") is None:
        return "flash-linear-attention's kernels are not installed; pip install fla-core"
    return None if device.type == "cuda" else f"it needs a GPU, and this device is {device}"


_fla_peer = partial(Peer, why_unavailable=_why_no_fla, autotuned=True)
_fla_alone = partial(_fla_peer, definition=gated_attention, checked_tokens=_CHECKED_BY_RECURRENCE)
FLA_PEERS = (
    _fla_peer("chunk-gla", RELATION, _build_gla, chunked_output),
    _fla_alone("chunk-gla-alone", _ATTENTION, _build_gla_alone),
    _fla_alone(
        "chunk-kda", (*_ATTENTION, "strength"), partial(_build_alone, "fla.ops.kda", "chunk_kda")
    ),
)


def linear_shapes(systems: Systems) -> list[Shape]:
    """One layer's call on a micro-batch of each scale, and on one sequence of 65,536 tokens.

    Of the campaign's longest, where that is shorter.
    """
    shapes = micro_batch_shapes(systems)
    for spec in systems:
        if spec.benchmark == "linear-long":
            side = max(spec.sides, key=lambda side: side["context"])
            length = min(side["context"], _LONGEST_SHAPE)
            shapes.append(shape_of(spec.scale, {**side, "context": length}))
    return shapes


def _retention(shape: Shape, device: torch.device, generator: torch.Generator) -> Tensor:
    """log alpha (B, H, T, D), FP32, of a layer as it starts, on random normalised inputs."""
    batch, heads, length, width = shape.dimensions
    config = ModelConfig(1, d_model=heads * width, heads=heads, d_ff=1, layout="L", givens=False)
    model = Decoder(config)
    model.initialise(seed=0)
    mixer = model.blocks[0].mixer.to(device)
    x = torch.randn(batch, length, config.d_model, device=device, generator=generator)
    with torch.no_grad():
        return mixer.log_retention(Normed(x))


def draw(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Inputs:
    """p1, p2, info and dy, (B, H, T, D) of `dtype`, log_retention in FP32; and for its peers.

    Those take read and write, (B, H, T, D), and strength in (0, 1), (B, H, T), all of `dtype`.
    forgetting is log_retention of a layer of which every eighth channel has learned to forget: a
    step down to -30. Everything is stored by token, (B, T, H, D).
    """
    names = (*COORDINATES, "dy")
    inputs = {name: stored_by_token(shape, dtype, device, generator) for name in names}
    read, write = coordinates(inputs["p1"].detach(), inputs["p2"].detach())
    strength = stored_by_token(shape, dtype, device, generator).detach()[..., 0].sigmoid()
    retention = _retention(shape, device, generator)
    forgetting = retention.clone()
    steps = forgetting[..., ::8]
    steps.copy_(-30 * torch.rand(steps.shape, device=device, generator=generator))
    derived = {
        "log_retention": retention,
        "forgetting": forgetting,
        "read": read,
        "write": write,
        "strength": strength,
    }
    for name, x in derived.items():
        inputs[name] = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return {**inputs, "dy": inputs["dy"].detach()}


_SUBJECT = Peer(
    "linear-relation",
    RELATION,
    AsItIs(partial(_output_of, _FLASH.call)),
    chunked_output,
    why_unavailable=_FLASH.why_unavailable,
)
_shared = {"shapes": linear_shapes, "draw": draw, "floor": True}
_GPU_SIDE = Side("linear-relation", "linear", {"linear": "flash"})
_CPU_SIDE = Side("chunked", "linear", {"linear": "chunked"})

# By kind of device.
BENCHMARKS = {
    "cuda": Benchmark(
        title="Linear Relation and its peers",
        subject="linear-relation",
        peers=(
            _SUBJECT,
            replace(_SUBJECT, name="forgetful", takes=_FORGETFUL),
            *FLA_PEERS,
            Peer(
                "chunked", RELATION, AsItIs(chunked_output), chunked_output, longest=_LONGEST_EAGER
            ),
        ),
        steps={
            "matched": (
                _GPU_SIDE,
                Side("flash-relation", "full", {"full": "flash"}),
                Side("flash-attention-2", "mha", {"mha": "flash"}),
            )
        },
        long=_GPU_SIDE,
        **_shared,
    ),
    "cpu": Benchmark(
        title=(
            "Chunked Linear Relation and its peers in plain PyTorch on a CPU; no kernel is measured"
        ),
        subject="chunked",
        peers=(
            Peer("chunked", RELATION, AsItIs(chunked_output), _RECURRENT),
            Peer("forgetful", _FORGETFUL, AsItIs(chunked_output), _RECURRENT),
            Peer("recurrent", RELATION, AsItIs(_RECURRENT), _RECURRENT),
        ),
        steps={
            "matched": (
                _CPU_SIDE,
                Side("tiled", "full", {"full": "tiled"}),
                Side("attention", "mha", {"mha": "reference"}),
            )
        },
        long=_CPU_SIDE,
        **_shared,
    ),
}
