"""Chunks, tile shapes and warps of every pass, by architecture; README.md says what was timed."""

import functools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from relation.kernels.common import HOPPER, SMALL, architecture, padded_width

LONGEST_SEGMENT = 16


def cdiv(a: int, b: int) -> int:
    """a / b rounded up; Triton's takes several microseconds on the host, as its next function."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()


class Launch(NamedTuple):
    """One pass over chunks, by block_d relation channels and block_v information channels.

    registers: at most so many a thread; None leaves them to the compiler. programs: of a pass over
    any chunks, for each block of channels, as many as a GPU holds. Each then takes several chunks.
    """

    block_d: int
    block_v: int
    num_warps: int
    num_stages: int
    registers: int | None = None
    programs: int = 0


@dataclass(frozen=True)
class Launches:
    """The passes of one architecture and element size, up to a head width of `widest`.

    chunk: tokens, a power of two. precision: see arithmetic.py. programs: so many keep the device
    busy; segments grow longer only where enough are left. output, information and coordinates take
    any chunk. weak_output, with either weak_gradients or the pair weak_information and
    weak_coordinates, takes weak ones; None where there are no such kernels. coordinates and
    weak_coordinates take a block of relation channels a program, weak_gradients holds all of them;
    of information channels states takes a block, the others hold all. scan: elements a program of
    the scan over segments takes, and loads it has in flight.
    """

    widest: int
    chunk: int
    precision: str
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


class Call(NamedTuple):
    """What the shape decides of a call: `segments` of at most `segment_chunks` of `chunks`.

    whole: whether the last chunk is full. group: heads of p1 for one of p2 and info.
    """

    launches: Launches
    width: int
    group: int
    heads: int
    chunks: int
    segment_chunks: int
    segments: int
    whole: bool

    @classmethod
    def of(cls, p1: torch.Tensor, p2: torch.Tensor) -> "Call":
        B, H, T, D = p1.shape
        launches = select_launches(p1.device, p1.element_size(), D)
        chunks, length = cdiv(T, launches.chunk), 1
        while length < LONGEST_SEGMENT and B * H * chunks >= 2 * length * launches.programs:
            length *= 2
        whole = T % launches.chunk == 0
        group = H // p2.shape[1]
        return cls(launches, D, group, B * H, chunks, length, cdiv(chunks, length), whole)

    def options(self, launch: Launch, *strided: torch.Tensor) -> dict[str, int | str]:
        """The constants of a pass's kernel, with Triton's options; strided: its (B, H, T, D)."""
        width = padded_width(self.width)
        capped = {} if launch.registers is None else {"maxnreg": launch.registers}
        return capped | {
            "PRECISION": self.launches.precision,
            "D": self.width,
            "GROUP": self.group,
            "ALIGNED": math.gcd(16, *(stride for x in strided for stride in x.stride()[:2])),
            "CHUNK": self.launches.chunk,
            "WHOLE": self.whole,
            # No tile is wider than it has to be.
            "BLOCK_D": min(launch.block_d, width),
            "BLOCK_V": min(launch.block_v, width),
            "num_warps": launch.num_warps,
            "num_stages": launch.num_stages,
        }

    def share_out(self, launch: Launch) -> tuple[int, dict[str, int]]:
        """The programs of a pass over any chunks, and of how many chunks each takes at most.

        More than a GPU holds where the kernels could not count turns times chunks in 32 bits.
        """
        programs, all_chunks = launch.programs, self.heads * self.chunks
        while True:
            share = next_power_of_2(cdiv(all_chunks, programs))
            if share * self.chunks < 2**31:
                levels = self.launches.chunk.bit_length() - 1
                return min(all_chunks, programs), {"SHARE": share, "LEVELS": levels}
            programs *= 2


# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = Launches(
    128, 32, "ieee", 1024,
    prepare=Launch(128, 128, 4, 1),
    states=Launch(32, 32, 4, 1),
    output=Launch(16, 128, 8, 1, programs=528),
    information=Launch(16, 128, 8, 1, programs=528),
    coordinates=Launch(16, 128, 4, 1, programs=264),
)  # fmt: skip

# By architecture and bytes an element. The first entry that is wide enough is taken.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        Launches(
            48, 64, "bf16x3", 512,
            prepare=Launch(64, 64, 4, 1, 128),
            states=Launch(64, 64, 4, 1, 128),
            output=Launch(32, 64, 4, 1, 128, 528),
            information=Launch(16, 64, 4, 1, 128, 528),
            coordinates=Launch(16, 64, 4, 1, 128, 176),
            weak_output=Launch(64, 64, 4, 1, 128),
            weak_gradients=Launch(64, 64, 4, 1),
        ),
        Launches(
            64, 64, "bf16x3", 256,
            prepare=Launch(64, 64, 4, 1, 96),
            states=Launch(64, 64, 4, 3),
            output=Launch(64, 64, 4, 1, programs=264),
            information=Launch(32, 64, 4, 1, programs=264),
            coordinates=Launch(32, 64, 4, 1, 168, 198),
            weak_output=Launch(64, 64, 4, 1, 168),
            weak_gradients=Launch(64, 64, 4, 1),
        ),
        Launches(
            128, 64, "bf16x3", 128,
            prepare=Launch(32, 32, 4, 1),
            states=Launch(16, 128, 4, 2),
            output=Launch(32, 128, 4, 1, 168, 396),
            information=Launch(16, 128, 4, 1, programs=264),
            coordinates=Launch(32, 32, 4, 1, 168, 132),
            weak_output=Launch(32, 128, 4, 2),
            weak_information=Launch(16, 128, 4, 2),
            weak_coordinates=Launch(16, 32, 4, 1, 128),
        ),
    ),
    (SMALL, 2): (
        Launches(
            128, 64, "bf16x3", 1024,
            prepare=Launch(128, 128, 4, 1),
            states=Launch(32, 64, 8, 1),
            output=Launch(16, 128, 8, 1, programs=512),
            information=Launch(16, 128, 8, 1, programs=512),
            coordinates=Launch(16, 128, 8, 1, programs=128),
        ),
    ),
    (HOPPER, 4): (_FP32,),
    (SMALL, 4): (_FP32,),
}  # fmt: skip

_ANY = Launches(
    128, 16, "ieee", 4,
    prepare=Launch(16, 16, 1, 1),
    states=Launch(16, 16, 1, 1),
    output=Launch(16, 128, 1, 1, programs=3),
    information=Launch(16, 128, 1, 1, programs=2),
    coordinates=Launch(16, 16, 1, 1, programs=5),
    scan=(1024, 2),
)  # fmt: skip
# One for each way to treat weak chunks; the interpreter takes the first by default.
INTERPRETED = [
    replace(
        _ANY,
        weak_output=Launch(16, 128, 1, 1),
        weak_gradients=Launch(128, 128, 1, 1),
    ),
    replace(
        _ANY,
        weak_output=Launch(16, 128, 1, 1),
        weak_information=Launch(16, 128, 1, 1),
        weak_coordinates=Launch(16, 16, 1, 1),
    ),
    _ANY,
]


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device and head width. Every GPU but sm_90 takes sm_120's."""
    if device.type == "cpu":
        return INTERPRETED[0]
    return _of_gpu(device, element_size, head_dim)


@functools.cache
def _of_gpu(device: torch.device, element_size: int, head_dim: int) -> Launches:
    name = HOPPER if architecture(device) == HOPPER else SMALL
    return next(entry for entry in LAUNCHES[name, element_size] if entry.widest >= head_dim)
