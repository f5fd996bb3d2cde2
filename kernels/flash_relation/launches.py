"""Tile shapes and warps of every pass, by architecture, and the order of programs."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from relation.errors import InputError
from relation.kernels.common import HOPPER, MOST_BLOCKS, OTHER, architecture, cdiv, padded_width

PASSES = ("forward", "repair", "p1", "p2_info")
GLUON_PASSES = ("forward", "p1", "p2_info")
# Rows and columns of their tiles of scores: four warps of 16 rows.
GLUON_BLOCK = 64


@dataclass(frozen=True)
class Launch:
    """One pass: tiles of block_i rows by block_j positions of history, and how they are run.

    `registers` caps the registers of a thread, so that more programs share a multiprocessor; None
    leaves them to the compiler. `padded`: through descriptors, a width below 64 comes as one tile
    of the next power of two, whose columns past the width are zeros, and not as two.
    """

    block_i: int
    block_j: int
    warps: int
    stages: int
    registers: int | None = None
    padded: bool = False

    def options(self) -> dict[str, int]:
        """Triton's launch options."""
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return options if self.registers is None else options | {"maxnreg": self.registers}


@dataclass(frozen=True)
class GluonLaunch:
    """One pass in Gluon (`hopper_tiles`), in tiles of `GLUON_BLOCK` rows and columns.

    `stages` of scanned tiles under way, a cap on `registers` a thread before the warps share them
    out anew, how many `programs` stay on a multiprocessor, `slots` for what blocks own, and
    `groups` of four warps that share a program's scanned tiles: up to three, backward two.
    """

    stages: int
    registers: int
    programs: int
    slots: int = 2
    groups: int = 1

    def options(self) -> dict[str, int]:
        """Triton's launch options: one consumer's warps, and every thread's cap at the start."""
        return {"num_warps": 4, "maxnreg": self.registers}


@dataclass(frozen=True)
class Launches:
    """The passes for one architecture and input size, for head widths up to `widest`.

    forward, repair and p1 own block_i rows, p2_info block_j. `tuned`: the fastest of a search on a
    GPU of this architecture; else conservative, and never timed. `descriptors`: tiles that a pass
    scans come through TMA descriptors; inputs that these cannot hold are copied. On Hopper 16-bit
    entries must: Triton before 3.7.1 leaves out the fence that other copies need. `gluon`: of
    GLUON_PASSES those that run in Gluon where `launch.why_triton` has no reason against it; p1
    leaves p2_info what no Triton kernel does, so both or neither. `gluon_large`: in place of these
    for what `launch.chosen` takes for large.
    """

    widest: int
    forward: Launch
    repair: Launch
    p1: Launch
    p2_info: Launch
    tuned: bool = False
    descriptors: bool = False
    gluon: Mapping[str, GluonLaunch] = field(default_factory=dict)
    gluon_large: Mapping[str, GluonLaunch] = field(default_factory=dict)

    def __post_init__(self):
        if ("p1" in self.gluon) != ("p2_info" in self.gluon):
            raise ValueError(f"width {self.widest}: p1 and p2_info are in gluon together")
        for name in PASSES:
            launch = getattr(self, name)
            owned, scanned = launch.block_i, launch.block_j
            if name == "p2_info":
                owned, scanned = scanned, owned
            if owned % scanned:
                where = f"{name} at width {self.widest}"
                raise ValueError(f"{where}: {scanned} does not divide {owned}")

    def in_gluon(self, name: str, large: bool = False) -> GluonLaunch | None:
        """How one of `GLUON_PASSES` runs in Gluon, if it does."""
        return (large and self.gluon_large.get(name)) or self.gluon.get(name)


# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = Launches(
    128,
    forward=Launch(16, 16, 4, 1),
    repair=Launch(16, 16, 4, 1),
    p1=Launch(32, 16, 4, 1),
    p2_info=Launch(16, 32, 4, 1),
)  # fmt: skip

# By architecture and bytes an element. The first entry that is wide enough is taken. Commit aac0f82
# was the last with a search (`tune flash`) that prints entries.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        Launches(
            32, descriptors=True,
            forward=Launch(64, 64, 4, 3),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 64, 4, 3, 168),
            p2_info=Launch(64, 64, 4, 3, 168),
        ),
        Launches(
            48, tuned=True, descriptors=True,
            forward=Launch(64, 64, 4, 3, padded=True),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 64, 4, 3, 168, padded=True),
            p2_info=Launch(64, 64, 4, 3, 168),
            gluon={
                "forward": GluonLaunch(3, 80, 3),
                "p1": GluonLaunch(3, 128, 2),
                "p2_info": GluonLaunch(3, 128, 2),
            },
        ),
        Launches(
            64, tuned=True, descriptors=True,
            forward=Launch(64, 64, 4, 3),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 64, 4, 3, 168),
            p2_info=Launch(64, 64, 4, 3),
            gluon={
                "forward": GluonLaunch(3, 80, 3),
                "p1": GluonLaunch(3, 128, 2),
                "p2_info": GluonLaunch(3, 128, 2),
            },
            gluon_large={"p2_info": GluonLaunch(4, 168, 1, groups=2)},
        ),
        Launches(
            80, tuned=True, descriptors=True,
            forward=Launch(64, 64, 4, 3),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 64, 4, 3, 168),
            p2_info=Launch(64, 64, 4, 3),
            gluon={
                "forward": GluonLaunch(2, 80, 3),
                "p1": GluonLaunch(3, 128, 2),
                "p2_info": GluonLaunch(3, 128, 2),
            },
        ),
        Launches(
            96, tuned=True, descriptors=True,
            forward=Launch(64, 64, 4, 2),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 32, 4, 3),
            p2_info=Launch(32, 64, 4, 2),
            gluon={
                "forward": GluonLaunch(2, 80, 3),
                "p1": GluonLaunch(2, 128, 2),
                "p2_info": GluonLaunch(2, 128, 2),
            },
            gluon_large={"p2_info": GluonLaunch(4, 168, 1, groups=2)},
        ),
        Launches(
            128, tuned=True, descriptors=True,
            forward=Launch(64, 64, 4, 2),
            repair=Launch(64, 32, 4, 1),
            p1=Launch(64, 32, 4, 3),
            p2_info=Launch(32, 64, 4, 2),
            gluon={
                "forward": GluonLaunch(3, 128, 2, slots=1),
                "p1": GluonLaunch(2, 128, 2, slots=1),
                "p2_info": GluonLaunch(2, 128, 2, slots=1),
            },
            gluon_large={
                "forward": GluonLaunch(4, 128, 1, slots=1, groups=3),
                "p1": GluonLaunch(4, 168, 1, slots=1, groups=2),
                "p2_info": GluonLaunch(4, 168, 1, slots=1, groups=2),
            },
        ),
    ),
    (OTHER, 2): (
        Launches(
            64,
            forward=Launch(64, 64, 4, 2),
            repair=Launch(64, 32, 4, 2),
            p1=Launch(64, 32, 4, 2),
            p2_info=Launch(32, 64, 4, 1),
        ),
        Launches(
            128,
            forward=Launch(64, 32, 4, 2),
            repair=Launch(64, 32, 4, 2),
            p1=Launch(32, 32, 4, 2),
            p2_info=Launch(32, 32, 4, 2),
        ),
    ),
    (HOPPER, 4): (_FP32,),
    (OTHER, 4): (_FP32,),
}  # fmt: skip

# One tile a block keeps the interpreter, which runs programs one after the other, short.
INTERPRETED = Launches(128, *[Launch(16, 16, 1, 1)] * len(PASSES))


@functools.cache
def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device, bytes an element and head width, 16 to 128."""
    if device.type == "cpu":
        return INTERPRETED
    entries = LAUNCHES[architecture(device), element_size]
    return next(entry for entry in entries if entry.widest >= head_dim)


@functools.cache
def split_width(head_dim: int, padded: bool = False) -> tuple[int, int]:
    """(WIDE, REST): powers of two of at least 16, or REST = 0, that cover `head_dim` columns.

    Two tiles where they are fewer columns than one: 48 is 32 + 16, 80 is 64 + 16, 60 is 64. Padded,
    48 is 64.
    """
    wide = 1 << (head_dim.bit_length() - 1)
    if wide == head_dim:
        return wide, 0
    rest = padded_width(head_dim - wide)
    return (2 * wide, 0) if rest == wide or (padded and wide < 64) else (wide, rest)


def grid(x: torch.Tensor, block: int) -> tuple[int, int, int]:
    """`head_groups` of programs that own `block` rows of x (B, H, T, D) and scan two such tensors.

    CUDA starts programs with the first of the three numbers counting fastest.
    """
    B, H, T, D = x.shape
    scanned, blocks = 2 * T * D * x.element_size(), cdiv(T, block)
    if blocks > MOST_BLOCKS:
        raise InputError(
            f"T is {T:,}; a pass takes {MOST_BLOCKS * block:,} tokens at most: split the text"
        )
    return head_groups(B * H, blocks, scanned, cache_bytes(x.device))


@functools.cache
def head_groups(heads: int, blocks: int, scanned: int, cache: int) -> tuple[int, int, int]:
    """(heads of a group, blocks of a head, groups).

    Groups start one after the other, so that the programs at work scan `scanned` bytes of each of
    few heads, and find them in the L2 cache of `cache` bytes: half of it is theirs.
    """
    most = max(1, cache // 2 // scanned)
    size = next(size for size in range(min(most, heads), 0, -1) if heads % size == 0)
    # Heads without a fitting divisor run at once.
    return (size, blocks, heads // size) if heads // size <= MOST_BLOCKS else (heads, blocks, 1)


@functools.cache
def cache_bytes(device: torch.device) -> int:
    """Bytes of a device's L2 cache; of a CPU's a few, so that small inputs have several groups."""
    if device.type == "cpu":
        return 8192
    return torch.cuda.get_device_properties(device).L2_cache_size


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many a device has; of a CPU one, so that a program of a small input takes many blocks."""
    if device.type == "cpu":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
