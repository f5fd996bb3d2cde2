"""Linear Relation beside flash-linear-attention's kernels and the chunked form in plain PyTorch.

That library is optional: where it is missing, its peers say so. Each has the definition of what it
computes.
"""

import importlib
import importlib.util
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from relation.bench.peers import AsItIs, Benchmark, Peer, Side, Systems, micro_batch_shapes
from relation.nn import Decoder
from relation.nn.norm import Normed
from relation.ops import chunked_linear_relation, get_backend, linear_relation
from relation.variants import ModelConfig, model_config
from relation.verify.inputs import Inputs, Operator, Shape, stored_by_token

RELATION = ("p1", "p2", "info", "log_retention")
_ATTENTION = ("read", "write", "info", "log_retention")
# A definition that goes token by token takes a second for a thousand of them.
_CHECKED_BY_RECURRENCE = 1024


@dataclass(frozen=True)
class OutputOf:
    """A form of Linear Relation without the final state that it returns besides y."""

    call: Callable[..., tuple[Tensor, Tensor]]

    def __call__(self, p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor) -> Tensor:
        return self.call(p1, p2, info, log_retention)[0]


chunked_output = OutputOf(chunked_linear_relation)


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


def gated_linear_attention(
    read: Tensor, write: Tensor, info: Tensor, log_retention: Tensor
) -> Tensor:
    """C_t = Diag(alpha_t) C_{t-1} + w_t I_t^T and C_t^T r_t, one token at a time.

    All (B, H, T, D), one floating dtype; log_retention is log alpha. Unlike Linear Relation's, the
    state that a token reads holds what it wrote.
    """
    C = info.new_zeros(*info.shape[:2], info.shape[-1], info.shape[-1])
    attended = []
    for r, w, i, g in zip(*(x.unbind(2) for x in (read, write, info, log_retention)), strict=True):
        C = g.exp()[..., None] * C + w[..., None] * i[..., None, :]
        attended.append((r[..., None, :] @ C).squeeze(-2))
    return torch.stack(attended, dim=2)


def gated_delta_attention(
    read: Tensor, write: Tensor, info: Tensor, log_retention: Tensor, strength: Tensor
) -> Tensor:
    """The gated delta rule with a retention a channel, one token at a time.

    As `gated_linear_attention`, but token t writes strength_t (I_t - what its w_t already reads).
    strength: (B, H, T).
    """
    C = info.new_zeros(*info.shape[:2], info.shape[-1], info.shape[-1])
    attended = []
    inputs = (read, write, info, log_retention, strength)
    for r, w, i, g, b in zip(*(x.unbind(2) for x in inputs), strict=True):
        C = g.exp()[..., None] * C
        missing = i[..., None, :] - w[..., None, :] @ C
        C = C + (b[..., None] * w)[..., None] * missing
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


def _by_token(kernel: Callable[..., tuple[Tensor, Tensor | None]]) -> Operator:
    """flash-linear-attention's kernel, which takes (B, T, H, D), as a function of (B, H, T, D)."""

    def attend(*inputs: Tensor) -> Tensor:
        return kernel(*(x.transpose(1, 2) for x in inputs), scale=1.0)[0].transpose(1, 2)

    return attend


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

    attend: as `gated_linear_attention`; before and after: `coordinates` and `answer`, or what
    torch.compile makes of them.
    """
    read, write = before(p1, p2)
    return after(read, write, info, attend(read, write, info, log_retention))


def _build_gla(shape: Shape, device: torch.device) -> Operator:
    attend = _build_gla_alone(shape, device)
    # Not one graph: the kernel keeps itself out of torch.compile.
    before, after = (torch.compile(f, dynamic=False) for f in (coordinates, answer))

    def call(p1: Tensor, p2: Tensor, info: Tensor, log_retention: Tensor) -> Tensor:
        return relation_by_attention(p1, p2, info, log_retention, attend, before, after)

    return call


def _build_gla_alone(shape: Shape, device: torch.device) -> Operator:
    return _by_token(_kernel("fla.ops.gla", "chunk_gla"))


def _build_kda(shape: Shape, device: torch.device) -> Operator:
    return _by_token(_kernel("fla.ops.kda", "chunk_kda"))


def _why_no_fla(device: torch.device) -> str | None:
    if importlib.util.find_spec("fla") is None:
        return "flash-linear-attention's kernels are not installed; pip install fla-core"
    return None if device.type == "cuda" else f"it needs a GPU, and this device is {device}"


def _fla_peer(name: str, takes: tuple[str, ...], build, definition: Operator, **rest) -> Peer:
    return Peer(
        name,
        takes,
        build,
        definition,
        why_unavailable=_why_no_fla,
        autotuned=True,
        **rest,
    )


FLA_PEERS = (
    _fla_peer("chunk-gla", RELATION, _build_gla, chunked_output),
    _fla_peer(
        "chunk-gla-alone",
        _ATTENTION,
        _build_gla_alone,
        gated_linear_attention,
        checked_tokens=_CHECKED_BY_RECURRENCE,
    ),
    _fla_peer(
        "chunk-kda",
        (*_ATTENTION, "strength"),
        _build_kda,
        gated_delta_attention,
        checked_tokens=_CHECKED_BY_RECURRENCE,
    ),
)


_STATES = ("p1", "p2", "info")
_LONGEST_EAGER = 4096
# The paper's longest: an operator beside its peers, which are made for such lengths.
_LONGEST_SHAPE = 65536


def linear_shapes(systems: Systems) -> list[Shape]:
    """One layer's call on a micro-batch of each scale, and on one sequence of 65,536 tokens.

    Of the campaign's longest, where that is shorter.
    """
    shapes = micro_batch_shapes(systems)
    for spec in systems:
        if spec.benchmark == "linear-long":
            side = max(spec.sides, key=lambda side: side["context"])
            model = model_config(side["model"])
            length = min(side["context"], _LONGEST_SHAPE)
            dimensions = side["micro"], model.heads, length, model.head_dim
            shapes.append(Shape(spec.scale, *dimensions))
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
    Everything is stored by token, (B, T, H, D).
    """
    inputs = {name: stored_by_token(shape, dtype, device, generator) for name in (*_STATES, "dy")}
    p1, p2 = inputs["p1"].detach(), inputs["p2"].detach()
    read, write = coordinates(p1, p2)
    strength = stored_by_token(shape, dtype, device, generator).detach()[..., 0].sigmoid()
    derived = {
        "log_retention": _retention(shape, device, generator),
        "read": read,
        "write": write,
        "strength": strength,
    }
    for name, x in derived.items():
        inputs[name] = x.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    return {**inputs, "dy": inputs["dy"].detach()}


_RECURRENT = OutputOf(linear_relation)
_FLASH = get_backend("linear", "flash")


def _sides(linear: Side, full: Side, mha: Side) -> dict:
    return {"steps": {"matched": (linear, full, mha)}, "long": linear}


_ON_GPU = Benchmark(
    title="Linear Relation and its peers",
    subject="linear-relation",
    shapes=linear_shapes,
    draw=draw,
    peers=(
        Peer(
            "linear-relation",
            RELATION,
            AsItIs(OutputOf(_FLASH.call)),
            chunked_output,
            why_unavailable=_FLASH.why_unavailable,
        ),
        *FLA_PEERS,
        Peer("chunked", RELATION, AsItIs(chunked_output), chunked_output, longest=_LONGEST_EAGER),
    ),
    **_sides(
        Side("linear-relation", "linear", {"linear": "flash"}),
        Side("flash-relation", "full", {"full": "flash"}),
        Side("flash-attention-2", "mha", {"mha": "flash"}),
    ),
    floor=True,
)

_ON_CPU = Benchmark(
    title="Chunked Linear Relation and its peers in plain PyTorch on a CPU; no kernel is measured",
    subject="chunked",
    shapes=linear_shapes,
    draw=draw,
    peers=(
        Peer("chunked", RELATION, AsItIs(chunked_output), _RECURRENT),
        Peer("recurrent", RELATION, AsItIs(_RECURRENT), _RECURRENT),
    ),
    **_sides(
        Side("chunked", "linear", {"linear": "chunked"}),
        Side("tiled", "full", {"full": "tiled"}),
        Side("attention", "mha", {"mha": "reference"}),
    ),
    floor=True,
)


def benchmark(device: torch.device) -> Benchmark:
    """What `bench linear` compares on a device."""
    return _ON_GPU if device.type == "cuda" else _ON_CPU
