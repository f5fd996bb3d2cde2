"""Tile shapes, warps and pipelining of every pass, by architecture: conservative and untuned."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Launch:
    """One pass: block_i rows i of Y by block_j positions j of history, in one program."""

    block_i: int
    block_j: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class Launches:
    """The passes of one architecture and element size, up to a padded head width of `widest`."""

    widest: int
    forward: Launch
    p2_info: Launch
    p1: Launch
    rows: Launch = Launch(32, 1, 4, 1)


HOPPER, SMALL = "sm_90", "sm_120"

# Bytes of shared memory a block may use.
SHARED_MEMORY = {HOPPER: 232_448, SMALL: 101_376}

# FP32 products run on the ordinary cores, whose operands fill the registers: small tiles.
_FP32 = Launches(128, Launch(16, 16, 4, 1), Launch(16, 32, 4, 1), Launch(32, 16, 4, 1))

# By architecture and bytes an element: (widest, forward, p2_info, p1). The first entry that is wide
# enough is taken.
LAUNCHES: dict[tuple[str, int], tuple[Launches, ...]] = {
    (HOPPER, 2): (
        Launches(64, Launch(64, 64, 4, 3), Launch(64, 64, 4, 2), Launch(64, 64, 4, 3)),
        Launches(128, Launch(64, 64, 4, 2), Launch(32, 64, 8, 2), Launch(64, 32, 4, 2)),
    ),
    (SMALL, 2): (
        Launches(64, Launch(64, 64, 4, 2), Launch(32, 64, 4, 1), Launch(64, 32, 4, 2)),
        Launches(128, Launch(64, 32, 4, 2), Launch(32, 32, 4, 2), Launch(32, 32, 4, 2)),
    ),
    (HOPPER, 4): (_FP32,),
    (SMALL, 4): (_FP32,),
}
INTERPRETED = Launches(128, *[Launch(16, 16, 1, 1)] * 3, rows=Launch(16, 1, 1, 1))


def padded_width(head_dim: int) -> int:
    """The power of two, at least 16, that a tile of `head_dim` columns is masked to."""
    return max(16, 1 << (head_dim - 1).bit_length())


def select_launches(device: torch.device, element_size: int, head_dim: int) -> Launches:
    """The entry for a device; every GPU but sm_90 takes sm_120's, the smallest shared memory."""
    if device.type == "cpu":
        return INTERPRETED
    hopper = torch.cuda.get_device_capability(device) == (9, 0)
    entries = LAUNCHES[HOPPER if hopper else SMALL, element_size]
    return next(entry for entry in entries if entry.widest >= padded_width(head_dim))
