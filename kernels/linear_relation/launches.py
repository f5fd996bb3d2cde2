"""Chunks, tile shapes and warps of every pass, by architecture: compiled, not yet tuned."""

from dataclasses import dataclass, replace

import torch

from kernels.common import architecture


@dataclass(frozen=True)
class Launch:
    """One pass over chunks, by block_d relation channels and block_v information channels."""

    block_d: int
    block_v: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Scan:
    """The scan over segments: `block` elements of a state a program, `steps` loads in flight."""

    block: int
    steps: int
    num_warps: int


@dataclass(frozen=True)
class Launches:
    """The passes of one architecture and element size, up to a padded head width of `width`.

    chunk: tokens, a power of two. precision: of products of two FP32 tiles. programs: so many
    keep the device busy, and segments grow longer only where as many are left.
    """

    width: int
    chunk: int
    precision: str
    states: Launch
    output: Launch
    information: Launch
    coordinates: Launch
    scan: Scan = Scan(128, 8, 1)
    programs: int = 1024

    @property
    def levels(self) -> int:
        return self.chunk.bit_length() - 1

    def cut(self, width: int) -> "Launches":
        """The same for a narrower head, without tiles that are wider than it."""

        def narrow(launch: Launch) -> Launch:
            return replace(
                launch, block_d=min(launch.block_d, width), block_v=min(launch.block_v, width)
            )

        return replace(
            self,
            width=width,
            states=narrow(self.states),
            output=narrow(self.output),
            information=narrow(self.information),
            coordinates=narrow(self.coordinates),
        )


@dataclass(frozen=True)
class Segments:
    """How a sequence is split: `count` segments of at most `length` chunks, `chunks` in all."""

    chunks: int
    length: int
    count: int


HOPPER, SMALL = "sm_90", "sm_120"

LONGEST_SEGMENT = 16


def split_chunks(heads: int, T: int, launches: Launches) -> Segments:
    """The segments of `heads` sequences of T tokens each."""
    chunks = (T + launches.chunk - 1) // launches.chunk
    length = 1
    while length < LONGEST_SEGMENT and heads * chunks >= 2 * length * launches.programs:
        length *= 2
    return Segments(chunks, length, (chunks + length - 1) // length)


def _entry(widest: int, chunk: int, precision: str, *passes: tuple[int, int, int, int]) -> Launches:
    return Launches(widest, chunk, precision, *(Launch(*numbers) for numbers in passes))


# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = _entry(128, 32, "ieee", *[(32, 32, 4, 1)] * 4)

# By architecture and bytes an element: the passes states, output, information and coordinates. The
# first entry that is wide enough is taken.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        _entry(64, 64, "bf16x3", (64, 64, 4, 2), (64, 64, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)),
        _entry(128, 64, "bf16x3", (64, 64, 4, 1), (32, 64, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1)),
    ),
    (SMALL, 2): (
        _entry(64, 64, "bf16x3", (64, 64, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
        _entry(128, 64, "bf16x3", (64, 64, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1), (32, 32, 8, 1)),
    ),
    (HOPPER, 4): (_FP32,),
    (SMALL, 4): (_FP32,),
}
INTERPRETED = replace(
    _entry(128, 16, "ieee", *[(16, 16, 1, 1)] * 4), scan=Scan(1024, 2, 1), programs=4
)


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device, cut to the head width.

    Every GPU but sm_90 takes sm_120's, the smallest shared memory.
    """
    width = max(16, 1 << (head_dim - 1).bit_length())
    if device.type == "cpu":
        return INTERPRETED.cut(width)
    name = HOPPER if architecture(device) == HOPPER else SMALL
    entries = LAUNCHES[name, element_size]
    return next(entry for entry in entries if entry.width >= width).cut(width)
