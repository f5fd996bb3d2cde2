"""How launches are chosen and shared out; tests/kernels/test_machine_code.py compiles them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from relation.kernels.flash_relation import launches
from relation.kernels.flash_relation.launches import load_launches, split_width
from relation.kernels.linear_relation import launches as linear


def test_gluon_is_chosen_for_what_it_can_do(monkeypatch):
    import triton

    from relation.kernels.flash_relation import hopper

    at = {entry.widest: entry for entry in load_launches()["sm_90"] if entry.bits == 16}
    asked = "p1", at[64]
    assert hopper.why_triton(*asked, torch.bfloat16) is None
    assert hopper.chosen(*asked, torch.bfloat16, False) == at[64].gluon_p1
    assert "bfloat16" in hopper.why_triton(*asked, torch.float16)
    assert "launches.toml" in hopper.why_triton("p1", at[64].in_triton(), torch.bfloat16)
    forward_in_triton = replace(at[48], gluon_forward=None)
    monkeypatch.setattr(hopper, "select_launches", lambda *given: forward_in_triton)
    told = hopper.describe_passes(torch.device("cuda"), torch.bfloat16, 48)
    assert told.startswith("forward in Triton: launches.toml has no gluon_forward")
    assert told.endswith("p1 in Gluon; p2_info in Gluon")
    monkeypatch.setattr(triton, "__version__", "3.9.0")
    hopper._why_no_gluon.cache_clear()
    assert "this is 3.9.0" in hopper.why_triton(*asked, torch.bfloat16)
    monkeypatch.undo()
    hopper._why_no_gluon.cache_clear()


@pytest.mark.parametrize("width", range(16, 129))
def test_widths_are_covered_without_padding_where_two_tiles_are_narrower(width):
    wide, rest = split_width(width)
    assert wide + rest >= width
    assert wide + rest <= max(16, 1 << (width - 1).bit_length())
    for part in (wide, rest):
        assert part == 0 or (part >= 16 and part & (part - 1) == 0)
    for bits in (16, 32):
        for entries in load_launches().values():
            assert any(e.widest >= width for e in entries if e.bits == bits)


def test_what_does_not_fit_together_is_refused(tmp_path):
    text = Path(launches.__file__).with_name("launches.toml").read_text(encoding="utf-8")
    file = tmp_path / "launches.toml"
    file.write_text(text.replace("block_i = 64, block_j = 64", "block_i = 64, block_j = 48", 1))
    with pytest.raises(ValueError, match="48 does not divide 64"):
        load_launches(file)
    entry = next(e for e in load_launches()["sm_90"] if e.gluon_p1)
    with pytest.raises(ValueError, match="gluon_p1 and gluon_p2_info come together"):
        replace(entry, gluon_p2_info=None)


@pytest.mark.parametrize(
    ("heads", "scanned", "at_a_time"),
    [(1, 10**9, 1), (31, 1, 31), (128, 512 << 10, 32), (256, 192 << 10, 128), (37, 1 << 20, 1)],
)
def test_heads_run_in_equal_groups_that_share_the_cache(heads, scanned, at_a_time):
    groups = heads // at_a_time
    assert launches.head_groups(heads, 5, scanned, 50 << 20) == (at_a_time, 5, groups)


@pytest.mark.parametrize(("heads", "chunks"), [(1, 1), (2, 66), (8, 1000), (1, 2**20), (8, 2**18)])
def test_linear_relations_programs_over_any_chunks_take_all_of_them(heads, chunks):
    entry = linear.LAUNCHES["sm_90", 2][0]
    call = linear.Call(entry, 48, 1, heads, chunks, 1, chunks, True)
    programs, shared = call.share_out(entry.coordinates)
    assert programs <= heads * chunks <= programs * shared["SHARE"]
    assert shared["SHARE"] * chunks < 2**31
