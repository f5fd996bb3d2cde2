"""Chunk length, tile shapes and warps by architecture. README.md says which were timed."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from relation.kernels.common import HOPPER, OTHER, architecture


class Launch(NamedTuple):
    """One pass, with tiles of block_d relation channels and block_v information channels.

    prepare, coordinates and weak_coordinates do not use block_v.
    registers: the cap per thread; None sets no cap. programs, for `general`: as many as a GPU holds
    at once, per block of channels, each with several chunks; 0 starts one program per chunk.
    """

    block_d: int
    block_v: int
    num_warps: int = 4
    num_stages: int = 1
    registers: int | None = None
    programs: int = 0


@dataclass(frozen=True)
class Launches:
    """The passes for one architecture and element size, up to a head width of `widest`.

    chunk: its tokens, a power of two. ieee: see `tiles.Constants`. programs: enough to keep
    the device busy; segments grow longer only while this many remain. Weak chunks are processed by
    weak_output and either weak_gradients or weak_information and weak_coordinates; if these are
    None, output, information and coordinates process every chunk. A program of coordinates and
    weak_coordinates takes one block of relation channels; weak_gradients needs all of them in one
    tile. A program of states takes one block of either kind; other passes over info or dY need all
    information channels in one tile. scan over segments: elements per program, loads in flight.
    """

    widest: int
    chunk: int
    ieee: bool
    programs: int
    prepare: Launch
    states: Launch
    output: Launch
    information: Launch
    coordinates: Launch
    weak_output: Launch | None = None
    weak_gradients: Launch | None = None
    weak_information: Launch | None = None
    weak_coordinates: Launch | None = None
    scan: tuple[int, int] = (128, 8)


# FP32 products run on the ordinary cores. Their operands fill registers, so tiles are small.
_FP32 = Launches(
    widest=128, chunk=32, ieee=True, programs=1024,
    prepare=Launch(block_d=128, block_v=128),
    states=Launch(block_d=32, block_v=32),
    output=Launch(block_d=16, block_v=128, num_warps=8, programs=528),
    information=Launch(block_d=16, block_v=128, num_warps=8, programs=528),
    coordinates=Launch(block_d=16, block_v=128, programs=264),
)  # fmt: skip

# By architecture and bytes per element. The first entry that is wide enough is used.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        Launches(
            widest=48, chunk=64, ieee=False, programs=512,
            prepare=Launch(block_d=64, block_v=64, registers=128),
            states=Launch(block_d=64, block_v=64, registers=128),
            output=Launch(block_d=32, block_v=64, registers=128, programs=528),
            information=Launch(block_d=16, block_v=64, registers=128, programs=528),
            coordinates=Launch(block_d=16, block_v=64, registers=128, programs=176),
            weak_output=Launch(block_d=64, block_v=64, registers=128),
            weak_gradients=Launch(block_d=64, block_v=64),
        ),
        Launches(
            widest=64, chunk=64, ieee=False, programs=256,
            prepare=Launch(block_d=64, block_v=64, registers=96),
            states=Launch(block_d=64, block_v=64, num_stages=3),
            output=Launch(block_d=64, block_v=64, programs=264),
            information=Launch(block_d=32, block_v=64, programs=264),
            coordinates=Launch(block_d=32, block_v=64, registers=168, programs=198),
            weak_output=Launch(block_d=64, block_v=64, registers=168),
            weak_gradients=Launch(block_d=64, block_v=64),
        ),
        Launches(
            widest=128, chunk=64, ieee=False, programs=128,
            prepare=Launch(block_d=32, block_v=32),
            states=Launch(block_d=16, block_v=128, num_stages=2),
            output=Launch(block_d=32, block_v=128, registers=168, programs=396),
            information=Launch(block_d=16, block_v=128, programs=264),
            coordinates=Launch(block_d=32, block_v=32, registers=168, programs=132),
            weak_output=Launch(block_d=32, block_v=128, num_stages=2),
            weak_information=Launch(block_d=16, block_v=128, num_stages=2),
            weak_coordinates=Launch(block_d=16, block_v=32, registers=128),
        ),
    ),
    (OTHER, 2): (
        Launches(
            widest=128, chunk=64, ieee=False, programs=1024,
            prepare=Launch(block_d=128, block_v=128),
            states=Launch(block_d=32, block_v=64, num_warps=8),
            output=Launch(block_d=16, block_v=128, num_warps=8, programs=512),
            information=Launch(block_d=16, block_v=128, num_warps=8, programs=512),
            coordinates=Launch(block_d=16, block_v=128, num_warps=8, programs=128),
        ),
    ),
    (HOPPER, 4): (_FP32,),
    (OTHER, 4): (_FP32,),
}  # fmt: skip

_ANY = Launches(
    widest=128, chunk=16, ieee=True, programs=4,
    prepare=Launch(block_d=16, block_v=16),
    states=Launch(block_d=16, block_v=16),
    output=Launch(block_d=16, block_v=128, programs=3),
    information=Launch(block_d=16, block_v=128, programs=2),
    coordinates=Launch(block_d=16, block_v=16, programs=5),
    scan=(1024, 2),
)  # fmt: skip
_WEAK, _WEAK_COORDINATES = Launch(block_d=16, block_v=128), Launch(block_d=16, block_v=16)
# One entry per way to process weak chunks. Triton's interpreter uses the first by default.
INTERPRETED = [
    replace(_ANY, weak_output=_WEAK, weak_gradients=Launch(block_d=128, block_v=128)),
    replace(_ANY, weak_output=_WEAK, weak_information=_WEAK, weak_coordinates=_WEAK_COORDINATES),
    _ANY,
]


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """Return the entry for a device, an element size in bytes and a head width."""
    if device.type == "cpu":
        return INTERPRETED[0]
    entries = LAUNCHES[architecture(device), element_size]
    return next(entry for entry in entries if entry.widest >= head_dim)
