"""A driver that compiles for a GPU which is not there, and launches nothing.

With it the launchers run on tensors of the CPU: every kernel that they would launch is compiled as
they would launch it. Triton's launcher is its own; only what it has compiled in C is not there.
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

# Of a device whose kernels no real launch finds.
NUMBER = 10_000


class Utils:
    def load_binary(self, name, kernel, shared, device):
        return None, 0, 0, 0, 1024

    def unload_module(self, module) -> None:
        pass

    def get_device_properties(self, device) -> dict[str, int]:
        return {"max_shared_mem": 232_448, "multiprocessor_count": 132}

    def fill_tma_descriptor_tiled(self, *numbers) -> tuple:
        """For a tensor map all that is in it."""
        return numbers

    fill_tma_descriptor = fill_tma_descriptor_tiled  # Triton 3.6

    def build_signature_metadata(self, signature) -> bytes:
        return b""

    def launch(self, *arguments) -> None:
        pass


class FakeDriver:
    """What Triton's JIT asks a driver, answered for one architecture."""

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
    """Kernels are compiled for `architecture` and not run; gives what was compiled, by name."""
    compiled: dict[str, list] = {}
    known: set[JITFunction] = set()
    before, hook = driver._active, triton.knobs.runtime.jit_post_compile_hook

    def note(*, fn, **others) -> None:
        known.add(fn.jit_function)
        kernels = fn.jit_function.device_caches[NUMBER][0]
        compiled[fn.jit_function.__name__] = list(kernels.values())

    driver._active = FakeDriver(architecture)
    triton.knobs.runtime.jit_post_compile_hook = note
    # What its modules in C would be; Triton 3.6 compiles one for each kernel.
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
