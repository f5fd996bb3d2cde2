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


# In place of Triton's module in C.
UTILS = SimpleNamespace(
    load_binary=lambda *given: (None, 0, 0, 0, 1024),
    unload_module=lambda module: None,
    get_device_properties=lambda device: {"max_shared_mem": 232_448, "multiprocessor_count": 132},
    fill_tma_descriptor_tiled=lambda *numbers: numbers,  # themselves instead of a tensor map
    fill_tma_descriptor=lambda *numbers: numbers,  # Triton 3.6
    build_signature_metadata=lambda signature: b"",
    launch=lambda *arguments: None,
)


def fake_driver(architecture: str) -> SimpleNamespace:
    """What Triton's JIT asks a driver, for one architecture."""
    target = GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)
    return SimpleNamespace(
        launcher_cls=nvidia.CudaLauncher,
        utils=UTILS,
        get_current_target=lambda: target,
        get_current_device=lambda: NUMBER,
        get_current_stream=lambda device: 0,
    )


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

    driver._active = fake_driver(architecture)
    triton.knobs.runtime.jit_post_compile_hook = note
    # Replacements for Triton's modules in C; Triton 3.6 compiles one for each kernel.
    in_c = {"PyKernelArg": SimpleNamespace, "ARG_CONSTEXPR": 0, "ARG_KERNEL": 1, "ARG_TUPLE": 2}
    in_c |= {"compile_module_from_src": lambda **given: UTILS}
    in_c |= {"library_dirs": lambda: []}
    forgotten = patch.dict(common.COMPILED, clear=True)
    try:
        with patch.multiple(nvidia, create=True, **in_c), forgotten:
            yield compiled
    finally:
        driver._active, triton.knobs.runtime.jit_post_compile_hook = before, hook
        for function in known:
            del function.device_caches[NUMBER]
