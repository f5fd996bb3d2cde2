"""Tile shapes and warps of every pass per architecture, and the order in which programs run."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from relation.kernels.common import HOPPER, OTHER, architecture, cdiv, padded_width

# Rows and columns of a Gluon kernel's tile of scores: four warps of 16 rows each.
GLUON_BLOCK = 64


@dataclass(frozen=True)
class Launch:
    """How Triton runs one pass, in tiles of block_i rows by block_j positions of history."""

    block_i: int
    block_j: int
    stages: int = 1

    def options(self) -> dict[str, int]:
        """Triton's launch options."""
        return {"num_warps": 4, "num_stages": self.stages}


@dataclass(frozen=True)
class GluonLaunch:
    """How Gluon runs one pass (`hopper_tiles`), in tiles of `GLUON_BLOCK` rows and columns.

    stages: places for scanned tiles. slots: places for the tiles that blocks own, 1 or 2. programs:
    how many run on one multiprocessor. groups: groups of four warps that share the scanned tiles,
    at most 3 (backward 2). registers: limit per thread before the groups redistribute them.
    shortest: the least T for an entry of `gluon_large`; the rows of its blocks past T are few.
    emulated: how many of eight exp2, up to 4, forward and p2_info compute without the special
    functions (`hopper_tiles.exp2`, `exp2_of_product`). holds_p1: whether forward, with one group
    and for inputs without documents, keeps its rows of p1 in registers.
    """

    stages: int
    registers: int
    programs: int
    slots: int = 2
    groups: int = 1
    shortest: int = 2048
    emulated: int = 0
    holds_p1: bool = False

    def options(self) -> dict[str, int]:
        """Triton's launch options: the first consumer's warps and the initial register limit."""
        return {"num_warps": 4, "maxnreg": self.registers}


@dataclass(frozen=True)
class Launches:
    """The launches of all passes for one architecture and dtype size, up to head width `widest`.

    A program of forward, repair and p1 owns block_i rows, and block_j must divide it; p2_info's
    owns block_j positions, and block_i must divide it. Hopper's 16-bit entries have one stage:
    Triton before 3.7.1 omits the fence that prefetched tiles require. gluon: the passes that run in
    Gluon for the dtypes of `launch.chosen`. It has both p1 and p2_info or neither, because no
    Triton kernel writes what Gluon's p2_info reads. gluon_large: used instead for inputs without
    documents that `launch.is_large` accepts. Only Gluon's launches were chosen by time, in BF16.
    """

    widest: int
    forward: Launch
    repair: Launch
    p1: Launch
    p2_info: Launch
    gluon: Mapping[str, GluonLaunch] = field(default_factory=dict)
    gluon_large: Mapping[str, GluonLaunch] = field(default_factory=dict)


# FP32 products do not use tensor cores. Their operands fill the registers, so tiles are small.
_FP32 = Launches(
    128,
    forward=Launch(block_i=16, block_j=16),
    repair=Launch(block_i=16, block_j=16),
    p1=Launch(block_i=32, block_j=16),
    p2_info=Launch(block_i=16, block_j=32),
)  # fmt: skip

_HOPPER = {
    "forward": Launch(block_i=64, block_j=64),
    "repair": Launch(block_i=64, block_j=32),
    "p1": Launch(block_i=64, block_j=32),
    "p2_info": Launch(block_i=32, block_j=64),
}


def _in_gluon(
    stages: tuple[int, int], emulated: tuple[int, int] = (0, 0), holds_p1: bool = False
) -> dict[str, GluonLaunch]:
    """Return launches in Gluon for heads up to 96 wide.

    stages: of forward and of the backward passes. emulated: of forward and of p2_info.
    """
    backward = GluonLaunch(stages=stages[1], registers=128, programs=2)
    return {
        "forward": GluonLaunch(
            stages=stages[0], registers=80, programs=3, emulated=emulated[0], holds_p1=holds_p1
        ),
        "p1": backward,
        "p2_info": replace(backward, emulated=emulated[1]),
    }


# For tiles of 64 columns and long histories.
_LONG_64 = {
    "forward": GluonLaunch(
        stages=4, registers=128, programs=1, groups=3, shortest=16_384, emulated=2
    ),
}  # fmt: skip

# Keys: architecture and bytes per element. The first entry that is wide enough is used. Commit
# aac0f82 was the last with a search (`tune flash`) that prints entries.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        Launches(32, **_HOPPER),
        Launches(48, **_HOPPER, gluon=_in_gluon((3, 3), emulated=(2, 0), holds_p1=True)),
        # Without `exp2_of_product`, which takes a width of 64, fewer emulated exp2 are faster.
        Launches(
            63, **_HOPPER, gluon=_in_gluon((3, 3), emulated=(3, 1), holds_p1=True),
            gluon_large=_LONG_64,
        ),
        Launches(
            64, **_HOPPER, gluon=_in_gluon((3, 3), emulated=(4, 1), holds_p1=True),
            gluon_large=_LONG_64,
        ),
        Launches(80, **_HOPPER, gluon=_in_gluon((2, 3), emulated=(3, 0))),
        Launches(
            96, **_HOPPER, gluon=_in_gluon((2, 2)),
            gluon_large={"p2_info": GluonLaunch(stages=4, registers=168, programs=1, groups=2)},
        ),
        Launches(
            128, **_HOPPER,
            gluon={
                "forward": GluonLaunch(stages=3, registers=128, programs=2, slots=1),
                "p1": GluonLaunch(stages=2, registers=128, programs=2, slots=1),
                "p2_info": GluonLaunch(stages=2, registers=128, programs=2, slots=1),
            },
            gluon_large={
                "forward": GluonLaunch(stages=4, registers=128, programs=1, slots=1, groups=3),
                "p1": GluonLaunch(stages=4, registers=168, programs=1, slots=1, groups=2),
                "p2_info": GluonLaunch(
                    stages=4, registers=168, programs=1, slots=1, groups=2, shortest=512
                ),
            },
        ),
    ),
    (OTHER, 2): (
        Launches(
            64,
            forward=Launch(block_i=64, block_j=64, stages=2),
            repair=Launch(block_i=64, block_j=32, stages=2),
            p1=Launch(block_i=64, block_j=32, stages=2),
            p2_info=Launch(block_i=32, block_j=64),
        ),
        Launches(
            128,
            forward=Launch(block_i=64, block_j=32, stages=2),
            repair=Launch(block_i=64, block_j=32, stages=2),
            p1=Launch(block_i=32, block_j=32, stages=2),
            p2_info=Launch(block_i=32, block_j=32, stages=2),
        ),
    ),
    (HOPPER, 4): (_FP32,),
    (OTHER, 4): (_FP32,),
}  # fmt: skip

# Triton's interpreter runs programs one after the other. Blocks of one tile keep that short.
_INTERPRETED = Launch(block_i=16, block_j=16)
INTERPRETED = Launches(128, _INTERPRETED, _INTERPRETED, _INTERPRETED, _INTERPRETED)


@functools.cache
def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """Return the entry for a device, bytes per element and a head width from 16 to 128."""
    if device.type == "cpu":
        return INTERPRETED
    entries = LAUNCHES[architecture(device), element_size]
    return next(entry for entry in entries if entry.widest >= head_dim)


@functools.cache
def split_width(head_dim: int) -> tuple[int, int]:
    """Return (WIDE, REST), the widths of one tile (REST = 0) or two that cover `head_dim` columns.

    Widths are powers of two from 16 on. Two tiles are used if they have fewer columns than one: 48
    is 32 + 16, 80 is 64 + 16, but 60 is 64.
    """
    wide = 1 << (head_dim.bit_length() - 1)
    if wide == head_dim:
        return wide, 0
    rest = padded_width(head_dim - wide)
    return (2 * wide, 0) if rest == wide else (wide, rest)


def grid(x: torch.Tensor, block: int) -> tuple[int, int, int]:
    """Return the grid (`head_groups`) of programs that own `block` rows of x (B, H, T, D).

    Each program scans two tensors like x. CUDA starts programs along the first dimension first.
    """
    B, H, T, D = x.shape
    scanned, blocks = 2 * T * D * x.element_size(), cdiv(T, block)
    return head_groups(B * H, blocks, scanned, cache_bytes(x.device))


@functools.cache
def head_groups(heads: int, blocks: int, scanned: int, cache: int) -> tuple[int, int, int]:
    """Return the grid (heads per group, blocks per head, groups).

    Groups start one after the other, so the running programs scan few heads, `scanned` bytes each.
    A group is as large as fits half of the L2 cache of `cache` bytes, but at least one head.
    """
    most = max(1, cache // 2 // scanned)
    size = next(size for size in range(min(most, heads), 0, -1) if heads % size == 0)
    # If there are more groups than CUDA launches, 65,535, all heads form one group.
    return (size, blocks, heads // size) if heads // size < 2**16 else (heads, blocks, 1)


@functools.cache
def cache_bytes(device: torch.device) -> int:
    """Return a device's L2 bytes; for a CPU a small number, so that tests get several groups."""
    if device.type == "cpu":
        return 8192
    return torch.cuda.get_device_properties(device).L2_cache_size


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """Return a device's multiprocessors; 1 for a CPU, so that a program takes many blocks."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
