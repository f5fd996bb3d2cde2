"""Linear Relation beside flash-linear-attention's kernels and the chunked form in plain PyTorch."""

import torch
from torch import Tensor

from relation.config import Campaign
from relation.geometry import ModelConfig, model_config
from relation.model import Decoder
from relation.model.norm import Normed
from relation.operators import get_backend, linear_relation
from relation.systems.bench.fla_peers import (
    FLA_PEERS,
    RELATION,
    OutputOf,
    chunked_output,
    coordinates,
)
from relation.systems.bench.peers import (
    Benchmark,
    Inputs,
    Operator,
    Peer,
    Shape,
    Side,
    micro_batch_shapes,
    stored_by_token,
)

_STATES = ("p1", "p2", "info")
_LONGEST_EAGER = 4096
# The paper's longest: an operator beside its peers, which are made for such lengths.
_LONGEST_SHAPE = 65536


def linear_shapes(campaign: Campaign) -> list[Shape]:
    """One layer's call on a micro-batch of each scale, and on one sequence of 65,536 tokens.

    Of the campaign's longest, where that is shorter.
    """
    shapes = micro_batch_shapes(campaign)
    for spec in campaign.systems:
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


def _build_flash(shape: Shape, device: torch.device) -> Operator:
    return OutputOf(get_backend("linear", "flash").call)


def _build_chunked(shape: Shape, device: torch.device) -> Operator:
    return chunked_output


def _build_recurrent(shape: Shape, device: torch.device) -> Operator:
    return _RECURRENT


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
            _build_flash,
            chunked_output,
            why_unavailable=get_backend("linear", "flash").why_unavailable,
        ),
        *FLA_PEERS,
        Peer("chunked", RELATION, _build_chunked, chunked_output, longest=_LONGEST_EAGER),
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
        Peer("chunked", RELATION, _build_chunked, _RECURRENT),
        Peer("recurrent", RELATION, _build_recurrent, _RECURRENT),
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
