"""Linear Relation's launches, compiled without a GPU, and how a call is shared out."""

import re

import pytest
import torch

pytest.importorskip("triton")

from fake_gpu import fake_gpu
from interpreter import INTERPRETED
from machine_code import overwritten_factors, resources_of, unfenced_products, unset_uniforms

from relation.kernels.common import SHARED_MEMORY
from relation.kernels.linear_relation import backward, forward, launches

if INTERPRETED:
    pytest.skip("nothing is compiled here", allow_module_level=True)

CASES = [
    ("sm_90", torch.bfloat16, 48, 128),
    ("sm_90", torch.bfloat16, 60, 128),
    ("sm_90", torch.bfloat16, 64, 130),
    ("sm_90", torch.bfloat16, 80, 128),
    ("sm_90", torch.bfloat16, 128, 130),
    ("sm_90", torch.float16, 64, 128),
    ("sm_90", torch.float32, 128, 130),
    ("sm_80", torch.bfloat16, 128, 130),
    ("sm_120", torch.bfloat16, 128, 130),
    ("sm_120", torch.float32, 128, 130),
]


@pytest.mark.parametrize(
    ("architecture", "dtype", "width", "length"),
    [pytest.param(*case, marks=pytest.mark.slow if case != CASES[0] else ()) for case in CASES],
)
def test_every_launch_is_sound(architecture, dtype, width, length, monkeypatch):
    """It fits the architecture, spills little, and its products read what they should."""
    name = architecture if architecture == "sm_90" else "sm_120"
    entries = launches.LAUNCHES[name, dtype.itemsize]
    entry = next(entry for entry in entries if entry.widest >= width)
    monkeypatch.setattr(launches, "select_launches", lambda *given: entry)
    p1, p2, info = torch.zeros(3, 1, length, 8, width, dtype=dtype).transpose(2, 3)
    g = torch.zeros(1, length, 8, width).transpose(1, 2)
    with fake_gpu(architecture) as compiled:
        y, _, kept = forward.launch_forward(p1, p2, info, g, None, 2.0)
        backward.launch_backward(y, None, p1, p2, info, g, kept, 2.0)
    assert {"prepare_kernel", "output_kernel", "coordinates_kernel"} < compiled.keys()
    for kernel_name, found in compiled.items():
        for kernel in found:
            used = resources_of(kernel)
            assert used.shared <= SHARED_MEMORY[architecture], kernel_name
            assert used.stack <= 400, kernel_name
            # Stores are left out: tiles that change their layout in shared memory look like them.
            unfenced = [x for x in unfenced_products(kernel.asm["ptx"]) if x[1] == "copied"]
            assert architecture != "sm_90" or unfenced == [], kernel_name
            assert overwritten_factors(kernel) == 0, kernel_name
            assert unset_uniforms(kernel) == [], kernel_name
            if width == 60:  # numbers of 16 bits are loaded in groups
                single = re.search(r"ld\.global(\.\w+)*\.[bu]16\b", kernel.asm["ptx"])
                assert single is None, kernel_name


@pytest.mark.parametrize(("heads", "chunks"), [(1, 1), (2, 66), (8, 1000), (1, 2**20), (8, 2**18)])
def test_programs_over_any_chunks_take_all_of_them(heads, chunks):
    entry = launches.LAUNCHES["sm_90", 2][0]
    call = launches.Call(entry, 48, 1, heads, chunks, 1, chunks, True)
    programs, shared = call.share_out(entry.coordinates)
    assert programs <= heads * chunks <= programs * shared["SHARE"]
    assert shared["SHARE"] * chunks < 2**31
