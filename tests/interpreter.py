"""Run tests of kernels in Triton's interpreter, in a separate process.

Triton chooses the interpreter at the import of the kernels, so an ordinary test starts the process.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _spare_time() -> None:
    """Make Triton's interpreter skip slow work that changes no result.

    It patches its language at every call of a device function; once per launch is enough. It
    repeats integer sums and products in 64 bits to find overflows, but reports them only in debug
    mode. It builds a table of all dtypes for each look-up.
    """
    from triton.runtime import interpreter

    patch, execute, patched = interpreter._patch_lang, interpreter.GridExecutor.__call__, set()
    look_up, dtypes = interpreter._get_np_dtype, {}

    def patch_once(function):
        if function in patched:
            return interpreter._LangPatchScope()
        patched.add(function)
        return patch(function)

    def launch(*arguments, **options) -> None:
        patched.clear()
        execute(*arguments, **options)

    def numpy_dtype(of):
        if (name := of.scalar.name) not in dtypes:
            dtypes[name] = look_up(of)
        return dtypes[name]

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = patch_once, launch
    interpreter._get_np_dtype = numpy_dtype
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


if INTERPRETED:
    _spare_time()


def run_interpreted(file: str) -> None:
    """Run the class TestInterpreted of a test file; on failure, fail with its output."""
    triton = pytest.importorskip("triton")
    if triton.__version__.startswith("3.6.") and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton 3.6's interpreter cannot run a loop with NumPy 2.4 or newer")
    path = os.pathsep.join((str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, __file__, file],
        cwd=TESTS.parent,
        env=os.environ | {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    options = ["-p", "no:cacheprovider", "--noconftest", "--durations=8"]
    sys.exit(pytest.main([*options, f"{sys.argv[1]}::TestInterpreted"]))
