"""Run tests of kernels in Triton's interpreter, in a separate process.

Triton chooses the interpreter at the import of the kernels, so an ordinary test starts the process.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = Path(__file__).parent
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def run_interpreted(file: str) -> None:
    """Run the class TestInterpreted of a test file; on failure, fail with its output."""
    triton = pytest.importorskip("triton")
    if triton.__version__.startswith("3.6.") and np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton 3.6's interpreter cannot run a loop with NumPy 2.4 or newer")
    path = os.pathsep.join((str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")))
    variables = {"PYTHONPATH": path, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    options = {"cwd": TESTS.parent, "env": os.environ | variables, "capture_output": True}
    done = subprocess.run([sys.executable, __file__, file], **options, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    options = ["-p", "no:cacheprovider", "--noconftest", "--durations=8"]
    sys.exit(pytest.main([*options, f"{sys.argv[1]}::TestInterpreted"]))
