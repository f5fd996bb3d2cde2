"""Which launches of a pass are tried, and which of them a multiprocessor runs well."""

from collections.abc import Iterator

import torch

from relation.kernels.common import SHARED_MEMORY
from relation.kernels.flash_relation.descriptors import are_describable
from relation.kernels.flash_relation.launches import Launch, Launches
from relation.kernels.flash_relation.resources import pass_resources

# `repair` runs on rows that almost no input has, and is not searched.
SEARCHED = ("forward", "p1", "p2_info")

# By bits of an input: what a program owns, what it scans a tile, and its warps. Matrix products of
# 16 bits take 64 rows or more for every four warps; those of FP32 keep their operands in registers.
_TILES = {
    16: ((64, 32, 4), (64, 64, 4), (128, 64, 4), (128, 32, 8), (128, 64, 8), (128, 128, 8)),
    32: ((16, 16, 4), (32, 16, 4), (32, 32, 4)),
}
_STAGES = {16: (2, 3, 4), 32: (1, 2)}

# Registers of a multiprocessor, and the most and, in this search, the fewest of a thread.
_REGISTERS = 65_536
_MOST_REGISTERS, _FEWEST_REGISTERS = 255, 128
_MOST_SPILLED = 256


def register_caps(warps: int) -> Iterator[int]:
    """Caps on a thread's registers that each let one more program share a multiprocessor."""
    programs = 1
    while True:
        # The hardware hands registers to a warp in units of 8 a thread.
        cap = _REGISTERS // (32 * warps * programs) // 8 * 8
        if cap < _FEWEST_REGISTERS:
            return
        if cap < _MOST_REGISTERS:
            yield cap
        programs += 1


def candidates(name: str, bits: int) -> list[Launch]:
    """The launches to try for a pass; their tiles divide as `Launches` demands."""
    found = []
    for owned, scanned, warps in _TILES[bits]:
        block_i, block_j = (scanned, owned) if name == "p2_info" else (owned, scanned)
        for stages in _STAGES[bits]:
            for registers in (None, *register_caps(warps)):
                found.append(Launch(block_i, block_j, warps, stages, registers))
    return found


def why_unfit(name: str, launches: Launches, architecture: str) -> str | None:
    """Why a pass of an entry is not worth timing, from compiling it for `architecture`, or None.

    It is compiled with the masks of a ragged T and, for 16 bits, as BF16: through descriptors where
    contiguous inputs are. Raises TritonError where it does not compile.
    """
    dtype = torch.bfloat16 if launches.bits == 16 else torch.float32
    contiguous = torch.empty((1, 1, 16, launches.widest), dtype=dtype)
    described = name != "repair" and are_describable(launches, contiguous)
    found = pass_resources(name, architecture, launches, described)
    if found.shared > SHARED_MEMORY[architecture]:
        return "needs more shared memory than there is"
    if found.stack > _MOST_SPILLED:
        return f"spills more than {_MOST_SPILLED} bytes a thread"
    return None
