"""Registers, stack and shared memory of every shipped launch, compiled without a GPU.

`python -m relation.kernels.flash_relation.resources` writes the table that the tests compare
launches with.
"""

import csv
from pathlib import Path

import triton
from triton.compiler import CompiledKernel

from relation.kernels.flash_relation import backward, forward
from relation.kernels.flash_relation.launches import PASSES, Launches, load_launches, split_width
from relation.kernels.resources import Resources, compile_kernel, resources_of

TABLE = Path(__file__).with_suffix(".csv")
_TILES = ("p1_tiles", "p2_tiles", "info_tiles", "dy_tiles")
_ROWS = "row_tiles"
_RESTS = ("p1_rests", "p2_rests", "info_rests", "dy_rests")
_DOCUMENTS = ("starts", "ends")
_FP32 = ("lam", "gate_logit", "log_norm", "row_sums", "du_self", "dlam_partial")


def compile_pass(
    name: str,
    architecture: str,
    launches: Launches,
    descriptors: bool = False,
    documents: bool = False,
) -> CompiledKernel:
    """Compile one of `PASSES` at the entry's widest head, with the masks of a ragged T.

    descriptors: as launched on inputs that TMA can hold, rather than through pointers; documents:
    as launched with some.
    """
    kernel = getattr(forward if name in ("forward", "repair") else backward, f"{name}_kernel")
    launch = getattr(launches, name)
    wide, rest = split_width(launches.widest, descriptors and launch.padded)
    constants = {
        "TRANSPORT_SELF": True,
        "D": launches.widest,
        "WIDE": wide,
        "REST": rest,
        "BLOCK_I": launch.block_i,
        "BLOCK_J": launch.block_j,
        "WHOLE": False,
        "FAST": launches.bits == 16,
        "ONLINE": launches.bits == 32,
        "ROWS": forward.REPAIRED_ROWS,
        "SCALED": descriptors and launches.widest in (16, 64),
        "GROUP": 1,
    }
    if not descriptors:
        constants |= dict.fromkeys((*_TILES, _ROWS))
    if not descriptors or not rest:
        constants |= dict.fromkeys(_RESTS)
    if not documents:
        constants |= dict.fromkeys(_DOCUMENTS)
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = dict.fromkeys(_DOCUMENTS if documents else (), "*i32")
    types |= {"H": "i32", "T": "i32", "scale": "fp32", "tau": "fp32"}
    for argument in {*_TILES, *_RESTS}.intersection(kernel.arg_names) - constants.keys():
        owned = argument == "p1_tiles" and name == "forward"
        rows = launch.block_i if owned or name == "p2_info" else launch.block_j
        element = "bf16" if launches.bits == 16 else "fp32"
        width = wide if argument in _TILES else rest
        types[argument] = f"tensordesc<{element}[1, 1, {rows}, {width}]>"
    if descriptors and _ROWS in kernel.arg_names:
        types[_ROWS] = f"tensordesc<fp32[1, {launch.block_i}]>"
    for argument in kernel.arg_names:
        if argument not in constants | types and not argument.startswith("stride"):
            types[argument] = "*fp32" if argument in _FP32 or launches.bits == 32 else "*bf16"
    return compile_kernel(kernel, constants, types, launch.options(), architecture)


def pass_resources(
    name: str, architecture: str, launches: Launches, descriptors: bool = False
) -> Resources:
    """What `compile_pass` gives takes of a multiprocessor."""
    return resources_of(compile_pass(name, architecture, launches, descriptors))


def variants(launches: Launches) -> list[tuple[str, bool]]:
    """The passes of an entry, and whether their tiles come through descriptors."""
    return [(name, launches.descriptors and name != "repair") for name in PASSES]


def write_table(path: Path = TABLE) -> None:
    """Compile every entry of launches.toml and write what it takes, with Triton's version."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            (
                "pass",
                "architecture",
                "bits",
                "widest",
                "tiles",
                "registers",
                "stack",
                "shared",
                "triton",
            )
        )
        for architecture, entries in load_launches().items():
            for launches in entries:
                for name, descriptors in variants(launches):
                    found = pass_resources(name, architecture, launches, descriptors)
                    tiles = "descriptors" if descriptors else "pointers"
                    row = (name, architecture, launches.bits, launches.widest, tiles)
                    taken = (found.registers, found.stack, found.shared)
                    writer.writerow((*row, *taken, triton.__version__))


if __name__ == "__main__":
    write_table()
