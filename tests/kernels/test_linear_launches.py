"""Linear Relation's launches, compiled without a GPU, and how a call is shared out."""

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from fake_gpu import fake_gpu
from interpreter import INTERPRETED

from relation.kernels.common import SHARED_MEMORY
from relation.kernels.linear_relation import forward
from relation.kernels.linear_relation.launches import INTERPRETED as ENTRIES
from relation.kernels.linear_relation.launches import LAUNCHES, Launch, share_of_mixed
from relation.kernels.linear_relation.resources import compile_pass, passes_of
from relation.kernels.uniforms import unset_uniforms

if INTERPRETED:
    pytest.skip("nothing is compiled here", allow_module_level=True)


def shipped_launches() -> list:
    return [
        pytest.param(
            *(arch, size, entry, name),
            id=f"{arch}-{size}-{entry.widest}-{name}",
            marks=() if (arch, size, name) == ("sm_90", 2, "output") else pytest.mark.slow,
        )
        for (arch, size), entries in LAUNCHES.items()
        for entry in entries
        for name in passes_of(entry)
    ]


@pytest.mark.parametrize(("architecture", "element_size", "entry", "name"), shipped_launches())
def test_every_launch_fits_its_architecture(architecture, element_size, entry, name):
    given = name, architecture, element_size, entry, entry.widest
    compiled = compile_pass(*given, whole=False)
    assert compiled.metadata.shared <= SHARED_MEMORY[architecture]
    assert unset_uniforms(compiled) == []


@pytest.mark.slow
def test_heads_of_60_channels_are_loaded_in_groups(monkeypatch):
    entry = next(e for e in LAUNCHES["sm_90", 2] if e.widest >= 60)
    monkeypatch.setattr(forward, "select_launches", lambda *given: entry)
    p1, p2, info, g = torch.zeros(4, 1, 128, 8, 60, dtype=torch.bfloat16).transpose(2, 3)
    with fake_gpu("sm_90") as compiled:
        forward.launch_forward(p1, p2, info, g, None, 2.0)
    assert "mixed_output_kernel" in compiled
    for name, found in compiled.items():
        for kernel in found:
            assert re.search(r"ld\.global(\.\w+)*\.[bu]16\b", kernel.asm["ptx"]) is None, name


def test_programs_over_mixed_chunks_take_all_of_them():
    launch = Launch(16, 128, 1, 1, programs=132)
    for heads, chunks in [(1, 1), (2, 66), (8, 1000), (1, 2**20), (8, 2**18)]:
        programs, share = share_of_mixed(heads, chunks, launch)
        assert programs <= heads * chunks <= programs * share
        assert share * chunks < 2**31


def test_an_entry_whose_passes_do_not_fit_together_is_refused():
    fused, apart, *_ = ENTRIES
    small = Launch(16, 16, 1, 1)
    for entry, change, message in [
        (fused, {"weak_information": small}, "not both"),
        (apart, {"weak_information": None}, "weak_coordinates takes what weak_information keeps"),
        (apart, {"weak_information": small}, "weak_information: give block_v of at least 128"),
        (fused, {"weak_gradients": small}, "weak_gradients: give block_v of at least 128"),
        (fused, {"weak_gradients": Launch(16, 128, 1, 1)}, "weak_gradients: give block_d"),
        (fused, {"mixed_output": None}, "give mixed_output, mixed_information and mixed_coord"),
        (fused, {"mixed_output": small}, "mixed passes: give programs, as many as a GPU holds"),
        (fused, {"mixed_output": replace(small, programs=1)}, "mixed_output: give block_v of at"),
        (fused, {"weak_gradients": None}, "mixed chunks are what all weak passes leave"),
    ]:
        with pytest.raises(ValueError, match=message):
            replace(entry, **change)
