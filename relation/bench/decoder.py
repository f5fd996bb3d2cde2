"""Whole training steps of the MHA backbone beside a plainly written decoder and their floor.

On a GPU the backbone's passes are CUDA graphs, as in training; the plain decoder's and the floor's
are not, so where kernels are short, the host's launches are in their time.
"""

from functools import partial

import torch

from relation.bench.floor import ATTENTION, PRODUCTS, TRAFFIC, FloorStep
from relation.bench.peers import Benchmark, Side
from relation.bench.plain import PlainStep

_FLOORS = {
    "floor": (PRODUCTS, ATTENTION, TRAFFIC),
    "floor-products": (PRODUCTS,),
    "floor-attention": (ATTENTION,),
    "floor-traffic": (TRAFFIC,),
}


def benchmark(device: torch.device) -> Benchmark:
    """What `bench decoder` compares on any device: whole steps alone, no operator."""
    backend = {"mha": "flash"}
    floors = [
        Side(name, "mha", backend, build=partial(FloorStep, parts))
        for name, parts in _FLOORS.items()
    ]
    return Benchmark(
        title="Training steps of the MHA backbone, of a plain decoder, and their floor",
        subject="decoder",
        steps={
            "matched": (
                Side("decoder", "mha", backend),
                Side("plain", "mha", backend, build=PlainStep),
                *floors,
            )
        },
    )
