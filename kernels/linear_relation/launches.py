"""Chunks, tile shapes and warps of every pass, by architecture; README.md says what was timed."""

import functools
import math
from dataclasses import dataclass

import torch
import triton

from relation.kernels.common import HOPPER, SMALL, architecture, padded_width


@dataclass(frozen=True)
class Launch:
    """One pass over chunks, by block_d relation channels and block_v information channels.

    registers: at most so many a thread; None leaves them to the compiler. programs: of a pass over
    mixed chunks, a block of channels; as many as 132 multiprocessors hold at the widths that were
    timed. Each then takes several chunks.
    """

    block_d: int
    block_v: int
    num_warps: int
    num_stages: int
    registers: int | None = None
    programs: int | None = None

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
    mixed_output, mixed_information and mixed_coordinates, all or none: passes over chunks of which
    some channels forget much and others little. The first two hold all information channels.
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
    mixed_output: Launch | None = None
    mixed_information: Launch | None = None
    mixed_coordinates: Launch | None = None
    scan: Scan = Scan(128, 8, 1)
    programs: int = 512
    prepare: Launch = Launch(128, 128, 4, 1)

    def __post_init__(self):
        if self.weak_information is not None and self.weak_gradients is not None:
            raise ValueError("give weak_information or weak_gradients, not both")
        if self.weak_coordinates is not None and self.weak_information is None:
            raise ValueError("weak_coordinates takes what weak_information keeps: give both")
        mixed = self.mixed_output, self.mixed_information, self.mixed_coordinates
        if 0 < mixed.count(None) < 3:
            raise ValueError("give mixed_output, mixed_information and mixed_coordinates, or none")
        if any(launch is not None and not launch.programs for launch in mixed):
            raise ValueError("mixed passes: give programs, as many as a GPU holds")
        weak_is_apart = self.weak_output is not None and (
            self.weak_gradients is not None or self.weak_coordinates is not None
        )
        if self.mixed_output is not None and not weak_is_apart:
            raise ValueError("mixed chunks are what all weak passes leave: give these, too")
        whole = "weak_output", "weak_information", "weak_gradients"
        for name in (*whole, "mixed_output", "mixed_information"):
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

    def constants(
        self, head_dim: int, group: int, first: torch.Tensor, *strided: torch.Tensor
    ) -> dict[str, int | str]:
        """What the kernels over chunks take alike; group: heads of p1 for one of p2 and info.

        first, strided: all tensors (B, H, T, D) that a kernel addresses by strides.
        """
        return {
            "PRECISION": self.precision,
            "D": head_dim,
            "GROUP": group,
            "ALIGNED": math.gcd(
                16, *(stride for x in (first, *strided) for stride in x.stride()[:2])
            ),
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
    """How many chunks a program by levels takes, where others take weak chunks.

    Most programs find nothing to do, and fewer of them take less time; enough are left for chunks
    that are not weak.
    """
    share = 1
    while share < LARGEST_SHARE and all_chunks >= 4 * share * launches.programs:
        share *= 2
    return share


def share_of_mixed(heads: int, chunks: int, launch: Launch) -> tuple[int, int]:
    """The programs over mixed chunks, and of how many chunks each takes at most, a power of two.

    More than a GPU holds where the kernels could not count turns times chunks in 32 bits.
    """
    programs = launch.programs
    while True:
        share = triton.next_power_of_2(triton.cdiv(heads * chunks, programs))
        if share * chunks < 2**31:
            return min(heads * chunks, programs), share
        programs *= 2


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
            prepare=Launch(64, 64, 4, 1, 128),
            weak_output=Launch(64, 64, 4, 1, 128), weak_gradients=Launch(64, 64, 4, 1),
            mixed_output=Launch(32, 64, 4, 1, 128, 528),
            mixed_information=Launch(16, 64, 4, 1, 128, 528),
            mixed_coordinates=Launch(16, 64, 4, 1, 128, 176),
        ),
        _entry(
            64, 64, "bf16x3", (64, 64, 4, 3), (64, 64, 4, 1), *[(32, 32, 4, 1)] * 2,
            programs=256, prepare=Launch(64, 64, 4, 1, 128),
            weak_output=Launch(64, 64, 4, 1, 168), weak_gradients=Launch(64, 64, 4, 1),
            mixed_output=Launch(64, 64, 4, 1, programs=264),
            mixed_information=Launch(32, 64, 4, 1, programs=264),
            mixed_coordinates=Launch(32, 64, 4, 1, 168, 198),
        ),
        _entry(
            128, 64, "bf16x3", (16, 128, 4, 2), (32, 64, 4, 1, 168), *[(32, 32, 4, 1)] * 2,
            programs=128, prepare=Launch(32, 32, 4, 1),
            weak_output=Launch(32, 128, 4, 2), weak_information=Launch(16, 128, 4, 2),
            weak_coordinates=Launch(16, 32, 4, 1, 128),
            mixed_output=Launch(32, 128, 4, 1, 168, 396),
            mixed_information=Launch(16, 128, 4, 1, programs=264),
            mixed_coordinates=Launch(32, 32, 4, 1, 168, 132),
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
        mixed_output=Launch(16, 128, 1, 1, programs=3),
        mixed_information=Launch(16, 128, 1, 1, programs=2),
        mixed_coordinates=Launch(16, 16, 1, 1, programs=5),
    ),
    _entry(
        128, 16, "ieee", *[(16, 16, 1, 1)] * 4, scan=Scan(1024, 2, 1), programs=4,
        weak_output=Launch(16, 128, 1, 1), weak_information=Launch(16, 128, 1, 1),
        weak_coordinates=Launch(16, 16, 1, 1),
        mixed_output=Launch(16, 128, 1, 1, programs=3),
        mixed_information=Launch(16, 128, 1, 1, programs=2),
        mixed_coordinates=Launch(16, 16, 1, 1, programs=5),
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
