"""Registers, stack and shared memory of every shipped launch, compiled without a GPU.

`python -m relation.kernels.linear_relation.resources` prints them at the paper's head widths.
"""

import torch
from triton.compiler import CompiledKernel

from relation.kernels.linear_relation.fused import weak_gradients_kernel
from relation.kernels.linear_relation.launches import LAUNCHES, Launches
from relation.kernels.linear_relation.levels import (
    coordinates_backward_kernel,
    information_backward_kernel,
)
from relation.kernels.linear_relation.mixed import (
    mixed_coordinates_kernel,
    mixed_information_kernel,
    mixed_output_kernel,
)
from relation.kernels.linear_relation.output import output_kernel
from relation.kernels.linear_relation.prepare import prepare_kernel
from relation.kernels.linear_relation.states import chunk_states_kernel
from relation.kernels.linear_relation.weak import (
    weak_coordinates_kernel,
    weak_information_kernel,
    weak_output_kernel,
)
from relation.kernels.resources import compile_kernel, resources_of
from relation.kernels.uniforms import unset_uniforms

# By their names in `Launches`.
PASSES = {
    "prepare": prepare_kernel,
    "states": chunk_states_kernel,
    "output": output_kernel,
    "information": information_backward_kernel,
    "coordinates": coordinates_backward_kernel,
    "weak_output": weak_output_kernel,
    "weak_information": weak_information_kernel,
    "weak_coordinates": weak_coordinates_kernel,
    "weak_gradients": weak_gradients_kernel,
    "mixed_output": mixed_output_kernel,
    "mixed_information": mixed_information_kernel,
    "mixed_coordinates": mixed_coordinates_kernel,
}
_TOKENS = {"p1", "p2", "info", "value", "dy", "y", "dp1", "dp2", "dinfo", "dscores", "dscores_t"}
_TYPES = dict.fromkeys(("H", "T", "chunks", "all_chunks", "segment_chunks", "segments"), "i32")
_TYPES |= {"scale": "fp32", "kinds": "*u8"}


def passes_of(launches: Launches) -> list[str]:
    """The names of an entry's passes over chunks."""
    return [name for name in PASSES if getattr(launches, name) is not None]


def compile_pass(
    name: str,
    architecture: str,
    element_size: int,
    launches: Launches,
    head_dim: int,
    *,
    whole: bool,
) -> CompiledKernel:
    """Compile one of `PASSES` of an entry at a head width, for BF16 or FP32 and g in FP32.

    whole: for a T without a ragged last chunk.
    """
    kernel = PASSES[name]
    options = getattr(launches, name).options(head_dim)
    blocks = {key: options.pop(key) for key in ("BLOCK_D", "BLOCK_V")}
    skips = launches.weak_output is not None
    contiguous = torch.empty(1, 1, 1, 16, device="meta")
    given = launches.constants(head_dim, 1, contiguous) | blocks
    given |= {"WHOLE": whole, "BACKWARD": True}
    given |= {"SKIP_TAKEN": skips, "SHARE": 4 if skips else 1, "KEEPS": True}
    given |= {"MIXED": launches.mixed_output is not None, "LEVELS": launches.levels}
    if launches.mixed_output is not None:
        given["BLOCK_S"] = launches.mixed_output.options(head_dim)["BLOCK_D"]
    constants = {key: value for key, value in given.items() if key in kernel.arg_names}
    types = dict(_TYPES)
    for argument in kernel.arg_names:
        if argument not in constants | types and not argument.startswith("stride"):
            small = element_size == 2 and argument in _TOKENS
            types[argument] = "*bf16" if small else "*fp32"
    return compile_kernel(kernel, constants, types, options, architecture)


def print_table() -> None:
    """A line for each pass of the 16-bit entries, of whole chunks."""
    for (architecture, element_size), entries in LAUNCHES.items():
        for head_dim in (48, 64, 80, 128) if element_size == 2 else ():
            launches = next(entry for entry in entries if entry.widest >= head_dim)
            for name in passes_of(launches):
                given = name, architecture, element_size, launches, head_dim
                compiled = compile_pass(*given, whole=True)
                found, unset = resources_of(compiled), len(unset_uniforms(compiled))
                print(
                    f"{architecture}, D = {head_dim}, {name}: {found.registers} registers,"
                    f" {found.stack} bytes of stack, {found.shared} of shared memory"
                    + (f"; {unset} reads of uniform registers without a value" if unset else ""),
                    flush=True,
                )


if __name__ == "__main__":
    print_table()
