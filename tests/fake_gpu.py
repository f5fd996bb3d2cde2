"""A driver that compiles for a GPU that this machine does not have, and launches nothing.

The launchers then run on CPU tensors and compile every kernel with the arguments of a real launch.
Triton's own launcher runs; only its modules in C are replaced.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from relation.kernels import common

# The number of a device that no real launch uses, so none finds its kernels.
NUMBER = 10_000


class Utils:
    def load_binary(self, name, kernel, shared, device):
        return None, 0, 0, 0, 1024

    def unload_module(self, module) -> None:
        pass

    def get_device_properties(self, device) -> dict[str, int]:
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132}

    def fill_tma_descriptor_tiled(self, *numbers) -> tuple:
        """Return the arguments themselves instead of a tensor map."""
        return numbers

    fill_tma_descriptor = fill_tma_descriptor_tiled  # Triton 3.6

    def build_signature_metadata(self, signature) -> bytes:
        return b""

    def launch(self, *arguments) -> None:
        pass


class FakeDriver:
    """Answers what Triton's JIT asks a driver, for one architecture."""

    launcher_cls = nvidia.CudaLauncher

    def __init__(self, architecture: str):
        self.target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
        self.utils = Utils()

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return NUMBER

    def get_current_stream(self, device) -> int:
        return 0


@contextmanager
def fake_gpu(architecture: str) -> Iterator[dict[str, list]]:
    """Compile kernels for `architecture` without running them; yield the compiled ones by name."""
    compiled: dict[str, list] = {}
    known: set[JITFunction] = set()
    before, hook = driver._active, triton.knobs.runtime.jit_post_compile_hook

    def note(*, fn, **others) -> None:
        known.add(fn.jit_function)
        kernels = fn.jit_function.device_caches[NUMBER][0]
        compiled[fn.jit_function.__name__] = list(kernels.values())

    driver._active = FakeDriver(architecture)
    triton.knobs.runtime.jit_post_compile_hook = note
    # Replacements for Triton's modules in C; Triton 3.6 compiles one for each kernel.
    in_c = {"PyKernelArg": SimpleNamespace, "ARG_CONSTEXPR": 0, "ARG_KERNEL": 1, "ARG_TUPLE": 2}
    in_c |= {"compile_module_from_src": lambda **given: driver._active.utils}
    in_c |= {"library_dirs": lambda: []}
    forgotten = patch.dict(common.COMPILED, clear=True)
    try:
        with patch.multiple(nvidia, create=True, **in_c), forgotten:
            yield compiled
    finally:
        driver._active, triton.knobs.runtime.jit_post_compile_hook = before, hook
        for function in known:
            del function.device_caches[NUMBER]
