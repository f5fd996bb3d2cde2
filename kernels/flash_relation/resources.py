"""Registers, stack and shared memory of every shipped launch, compiled without a GPU.

`python -m relation.kernels.flash_relation.resources` writes the table that the tests compare
launches with.
"""

import csv
from functools import partial
from pathlib import Path

import triton
from triton.compiler import CompiledKernel

from relation.kernels.flash_relation import backward, forward
from relation.kernels.flash_relation.launches import (
    GLUON_BLOCK,
    GLUON_PASSES,
    PASSES,
    Launches,
    load_launches,
    split_width,
)
from relation.kernels.resources import Resources, compile_kernel, resources_of

TABLE = Path(__file__).with_suffix(".csv")
_TILES = ("p1_tiles", "p2_tiles", "info_tiles", "dy_tiles")
_ROWS = "row_tiles"
_RESTS = ("p1_rests", "p2_rests", "info_rests", "dy_rests")
_DOCUMENTS = ("starts", "ends")
_FP32 = ("lam", "gate_logit", "log_norm", "row_sums", "du_self", "dlam_partial", "dlam")


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


def compile_gluon(
    name: str, architecture: str, launches: Launches, group: int = 1
) -> CompiledKernel:
    """Compile one of `GLUON_PASSES` at the entry's widest head; `group` heads share history."""
    from relation.kernels.flash_relation import hopper_launch as gluon

    launch = launches.gluon(name)
    kernel = getattr(gluon, f"hopper_{name}_kernel")
    wide, rest = split_width(launches.widest)
    constants = {
        "TRANSPORT_SELF": True,
        "WIDE": wide,
        "REST": rest,
        "STAGES": launch.stages,
        "SCALE": launches.widest**-0.5,
        "SCALED": launches.widest in (16, 64),
        "GROUP": group,
        "PRODUCER_REGISTERS": gluon.PRODUCER_REGISTERS,
    }
    tiles = [name for name in kernel.arg_names if name.endswith("_tiles")]
    rests = [name for name in kernel.arg_names if name.endswith("_rests")]
    if not rest:
        constants |= dict.fromkeys(rests)
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    types = dict.fromkeys(("H", "T", "parts", "heads", "blocks", "all_blocks"), "i32")
    types |= {"tau": "fp32", "counter": "*i32", "counters": "*i32"}
    types |= dict.fromkeys(_FP32, "*fp32")
    for names, width in ((tiles, wide), (rests, rest)):
        layout = gluon.tile_layout(width) if width else None
        types |= dict.fromkeys(names, f"tensordesc<bf16[1, 1, {GLUON_BLOCK}, {width}],{layout!r}>")
    numbers = f"tensordesc<fp32[1, {GLUON_BLOCK}],{gluon.numbers_layout()!r}>"
    types |= dict.fromkeys(("sums_tiles", "norm_tiles", "logit_tiles"), numbers)
    types = {key: value for key, value in types.items() if key not in constants}
    return compile_kernel(kernel, constants, types, launch.options(), architecture)


def pass_resources(
    name: str, architecture: str, launches: Launches, descriptors: bool = False
) -> Resources:
    """What `compile_pass` gives takes of a multiprocessor."""
    return resources_of(compile_pass(name, architecture, launches, descriptors))


def variants(launches: Launches) -> list[tuple[str, bool]]:
    """The passes of an entry in Triton, and whether their tiles come through descriptors."""
    return [(name, launches.descriptors and name != "repair") for name in PASSES]


def gluon_variants(launches: Launches) -> list[str]:
    """The passes of an entry in Gluon."""
    return [name for name in GLUON_PASSES if launches.gluon(name) is not None]


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
                kernels = [
                    (
                        name,
                        "descriptors" if by else "pointers",
                        partial(compile_pass, descriptors=by),
                    )
                    for name, by in variants(launches)
                ]
                kernels += [(name, "gluon", compile_gluon) for name in gluon_variants(launches)]
                for name, tiles, compiled in kernels:
                    found = resources_of(compiled(name, architecture, launches))
                    row = (name, architecture, launches.bits, launches.widest, tiles)
                    taken = (found.registers, found.stack, found.shared)
                    writer.writerow((*row, *taken, triton.__version__))


if __name__ == "__main__":
    write_table()
