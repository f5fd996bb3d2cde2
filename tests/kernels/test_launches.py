"""How work is shared out, and texts too long; test_machine_code.py compiles all launches."""

import pytest
import torch
from conftest import refusal

pytest.importorskip("triton")

from relation.kernels.flash_relation import launches
from relation.kernels.linear_relation.launch import Call
from relation.kernels.linear_relation.launches import LAUNCHES


@pytest.mark.parametrize(("heads", "chunks"), [(1, 1), (2, 66), (8, 1000), (1, 2**20), (8, 2**18)])
def test_linear_relations_programs_over_any_chunks_take_all_of_them(heads, chunks):
    entry = LAUNCHES["sm_90", 2][0]
    call = Call(entry, (1, heads, chunks * entry.chunk, 48), 1, chunks, 1, chunks)
    programs, share = call.share_out(entry.coordinates)
    assert programs <= heads * chunks <= programs * share
    assert share * chunks < 2**31


def test_more_tokens_than_a_launch_counts_are_refused():
    states = torch.empty(1, 1, 65_535 * 64 + 1, 48, device="meta")
    assert "4,194,240 tokens at most" in refusal(lambda: launches.grid(states, 64))
    on_cpu = torch.empty(1, dtype=torch.float32).expand(1, 1, 65_535 * 16 + 1, 48)
    assert "1,048,560 tokens at most" in refusal(lambda: Call.of(on_cpu, on_cpu))
