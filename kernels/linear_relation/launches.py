"""Chunks, tile shapes and warps of every pass, by architecture; README.md says what was timed."""

import functools
from dataclasses import dataclass

import torch

from relation.kernels.common import HOPPER, SMALL, architecture, padded_width


@dataclass(frozen=True)
class Launch:
    """One pass over chunks, by block_d relation channels and block_v information channels.

    registers: at most so many a thread; None leaves them to the compiler.
    """

    block_d: int
    block_v: int
    num_warps: int
    num_stages: int
    registers: int | None = None

    def options(self, head_dim: int) -> dict[str, int]:
        """What the pass's kernel takes at a head width: no tile is wider than it has to be."""
        width = padded_width(head_dim)
        capped = {} if self.registers is None else {"maxnreg": self.registers}
        return capped | {
            "BLOCK_D": min(self.block_d, width),
            "BLOCK_V": min(self.block_v, width),
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


_BLOCK_PASSES = ("output", "information", "coordinates")


@dataclass(frozen=True)
class Scan:
    """The scan over segments: `block` elements a program, at most `steps` loads in flight."""

    block: int
    steps: int
    num_warps: int


@dataclass(frozen=True)
class Launches:
    """The passes of one architecture and element size, up to a head width of `widest`.

    chunk: tokens, a power of two. precision: of products of two FP32 tiles. programs: so many
    keep the device busy; segments grow longer, and programs take more chunks, only where enough
    are left. Passes over chunks of weak retention alone, or None where the others take those
    chunks too: weak_output, weak_information, weak_coordinates, which takes what
    weak_information keeps, and weak_gradients, which does the work of both and holds all
    relation channels. It, weak_output and weak_information hold all information channels.
    block_output, block_information and block_coordinates, all or none: the passes over chunks
    in blocks of block_width tokens; the first two hold all information channels.
    """

    widest: int
    chunk: int
    precision: str
    states: Launch
    output: Launch
    information: Launch
    coordinates: Launch
    weak_output: Launch | None = None
    weak_information: Launch | None = None
    weak_coordinates: Launch | None = None
    weak_gradients: Launch | None = None
    block_output: Launch | None = None
    block_information: Launch | None = None
    block_coordinates: Launch | None = None
    block_width: int = 16
    scan: Scan = Scan(128, 8, 1)
    programs: int = 512
    prepare: Launch = Launch(128, 128, 4, 1)

    def __post_init__(self):
        if self.weak_information is not None and self.weak_gradients is not None:
            raise ValueError("give weak_information or weak_gradients, not both")
        if self.weak_coordinates is not None and self.weak_information is None:
            raise ValueError("weak_coordinates takes what weak_information keeps: give both")
        if len({getattr(self, f"block_{name}") is None for name in _BLOCK_PASSES}) > 1:
            raise ValueError("give block_output, block_information and block_coordinates, or none")
        if self.block_output is not None:
            if self.weak_output is None or self.weak_gradients is self.weak_coordinates is None:
                raise ValueError("blocks take what passes over weak chunks leave: give these, too")
            if self.chunk % self.block_width or self.block_width & (self.block_width - 1):
                raise ValueError("block_width: give a power of two that divides the chunk")
        whole = "weak_output", "weak_information", "weak_gradients"
        for name in (*whole, "block_output", "block_information"):
            launch = getattr(self, name)
            if launch is not None and launch.block_v < self.widest:
                raise ValueError(f"{name}: give block_v of at least {self.widest}, the widest head")
        if self.weak_gradients is not None and self.weak_gradients.block_d < self.widest:
            raise ValueError(f"weak_gradients: give block_d of at least {self.widest}")

    @property
    def levels(self) -> int:
        return self.chunk.bit_length() - 1

    @property
    def kept_scores(self) -> tuple[tuple[int, int, int], torch.dtype]:
        """Shape and dtype of a chunk's dA between weak_information and weak_coordinates.

        Whole in FP32, or two BF16 parts.
        """
        parts, dtype = (1, torch.float32) if self.precision == "ieee" else (2, torch.bfloat16)
        return (parts, self.chunk, self.chunk), dtype

    def constants(self, head_dim: int, group: int) -> dict[str, int | str]:
        """What the kernels over chunks take alike; group: heads of p1 for one of p2 and info."""
        return {
            "PRECISION": self.precision,
            "D": head_dim,
            "GROUP": group,
            "CHUNK": self.chunk,
        }


@dataclass(frozen=True)
class Segments:
    """How a sequence is split: `count` segments of at most `length` chunks, `chunks` in all.

    whole: whether the last chunk is full.
    """

    chunks: int
    length: int
    count: int
    whole: bool


LONGEST_SEGMENT = 16
LARGEST_SHARE = 8


def share_of(all_chunks: int, launches: Launches) -> int:
    """How many chunks a program by levels or by blocks takes, where others take weak chunks.

    Most programs find nothing to do, and fewer of them take less time; enough are left for chunks
    that are not weak.
    """
    share = 1
    while share < LARGEST_SHARE and all_chunks >= 4 * share * launches.programs:
        share *= 2
    return share


def split_chunks(heads: int, T: int, launches: Launches) -> Segments:
    """The segments of `heads` sequences of T tokens each."""
    chunks = (T + launches.chunk - 1) // launches.chunk
    length = 1
    while length < LONGEST_SEGMENT and heads * chunks >= 2 * length * launches.programs:
        length *= 2
    return Segments(chunks, length, (chunks + length - 1) // length, T % launches.chunk == 0)


def _entry(widest: int, chunk: int, precision: str, *passes: tuple[int, ...], **others) -> Launches:
    return Launches(widest, chunk, precision, *(Launch(*numbers) for numbers in passes), **others)


# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = _entry(128, 32, "ieee", *[(32, 32, 4, 1)] * 4, programs=1024)

# By architecture and bytes an element: the passes states, output, information and coordinates, and
# those of weak chunks where they have their own. The first entry that is wide enough is taken.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        _entry(
            48, 64, "bf16x3", (64, 64, 4, 1, 128), (64, 64, 4, 1), *[(32, 32, 4, 1)] * 2,
            weak_output=Launch(64, 64, 4, 1, 128), weak_gradients=Launch(64, 64, 4, 1),
        ),
        _entry(
            64, 64, "bf16x3", (64, 64, 4, 3), (64, 64, 4, 1), *[(32, 32, 4, 1)] * 2,
            programs=256,
            weak_output=Launch(64, 64, 4, 1, 168), weak_gradients=Launch(64, 64, 4, 1),
        ),
        _entry(
            128, 64, "bf16x3", (16, 128, 4, 2), (32, 64, 4, 1, 168), *[(32, 32, 4, 1)] * 2,
            programs=128, prepare=Launch(32, 32, 4, 1),
            weak_output=Launch(32, 128, 4, 2), weak_information=Launch(16, 128, 4, 2),
            weak_coordinates=Launch(16, 32, 4, 1, 128),
        ),
    ),
    (SMALL, 2): (
        _entry(128, 64, "bf16x3", (32, 64, 8, 1), *[(32, 32, 8, 1)] * 3, programs=1024),
    ),
    (HOPPER, 4): (_FP32,),
    (SMALL, 4): (_FP32,),
}  # fmt: skip
# One for each way to treat weak chunks; the interpreter takes the first by default.
INTERPRETED = (
    _entry(
        128, 16, "ieee", *[(16, 16, 1, 1)] * 4, scan=Scan(1024, 2, 1), programs=4,
        weak_output=Launch(16, 128, 1, 1), weak_gradients=Launch(128, 128, 1, 1),
        block_output=Launch(16, 128, 1, 1), block_information=Launch(16, 128, 1, 1),
        block_coordinates=Launch(16, 16, 1, 1), block_width=4,
    ),
    _entry(
        128, 16, "ieee", *[(16, 16, 1, 1)] * 4, scan=Scan(1024, 2, 1), programs=4,
        weak_output=Launch(16, 128, 1, 1), weak_information=Launch(16, 128, 1, 1),
        weak_coordinates=Launch(16, 16, 1, 1),
        block_output=Launch(16, 128, 1, 1), block_information=Launch(16, 128, 1, 1),
        block_coordinates=Launch(16, 16, 1, 1), block_width=4,
    ),
    _entry(
        128, 16, "ieee", *[(16, 16, 1, 1)] * 4, scan=Scan(1024, 2, 1), programs=4,
        weak_output=Launch(16, 128, 1, 1), weak_information=Launch(16, 128, 1, 1),
    ),
    _entry(128, 16, "ieee", *[(16, 16, 1, 1)] * 4, scan=Scan(1024, 2, 1), programs=4),
)  # fmt: skip


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device and head width. Every GPU but sm_90 takes sm_120's."""
    if device.type == "cpu":
        return INTERPRETED[0]
    return _of_gpu(device, element_size, head_dim)


@functools.cache
def _of_gpu(device: torch.device, element_size: int, head_dim: int) -> Launches:
    name = HOPPER if architecture(device) == HOPPER else SMALL
    return next(entry for entry in LAUNCHES[name, element_size] if entry.widest >= head_dim)
