"""What a kernel takes of a multiprocessor, from compiling it for an architecture: no GPU needed."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel


@dataclass(frozen=True)
class Resources:
    """Of one program: registers and bytes of stack (spills) of a thread, bytes of shared memory."""

    registers: int
    stack: int
    shared: int


def compile_kernel(
    kernel: triton.JITFunction,
    constants: Mapping[str, object],
    types: Mapping[str, str],
    options: Mapping[str, int],
    architecture: str,
) -> CompiledKernel:
    """Compile `kernel` for an architecture ("sm_90") as a launch on contiguous tensors would.

    constants: values of constexpr parameters; types: Triton types of the others, where a name
    without an entry is a stride, a 32-bit multiple of 16; options: num_warps and the like.
    """
    signature, attributes = {}, {}
    values = dict(constants)
    for position, name in enumerate(kernel.arg_names):
        if name.startswith("stride") and name.endswith("_d"):
            values[name] = 1
        signature[name] = "constexpr" if name in values else types.get(name, "i32")
        if signature[name].startswith("*") or (name not in types and name not in values):
            attributes[(position,)] = [["tt.divisibility", 16]]
    source = ASTSource
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource

        source = GluonASTSource
    return triton.compile(
        source(kernel, signature, values, attributes),
        target=GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32),
        options=dict(options),
    )


def compile_resources(
    kernel: triton.JITFunction,
    constants: Mapping[str, object],
    types: Mapping[str, str],
    options: Mapping[str, int],
    architecture: str,
) -> Resources:
    """What a kernel takes, as `compile_kernel` compiles it."""
    return resources_of(compile_kernel(kernel, constants, types, options, architecture))


def resources_of(compiled: CompiledKernel) -> Resources:
    """What the machine code takes, by Triton's cuobjdump."""
    registers, stack = _resource_usage(compiled.asm["cubin"])
    return Resources(registers, stack, compiled.metadata.shared)


def serialises_products(compiled: CompiledKernel) -> bool:
    """Whether ptxas waits for each of Hopper's products before it begins the next.

    It does where it runs out of registers for the numbers of products under way, and says so only
    in a message that Triton swallows.
    """
    sass = read_machine_code(compiled)
    return sass.count("WARPGROUP.DEPBAR") > sass.count("HGMMA") // 2


def read_machine_code(compiled: CompiledKernel) -> str:
    """The machine code, as Triton's cuobjdump lists it."""
    return _read_cubin(compiled.asm["cubin"], "-sass")


def _resource_usage(cubin: bytes) -> tuple[int, int]:
    listed = _read_cubin(cubin, "--dump-resource-usage")
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", listed).groups()
    return int(registers), int(stack)


def _read_cubin(cubin: bytes, what: str) -> str:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [tool, what, file]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
