"""Texts that are too long for a launch. test_machine_code.py compiles all launches."""

import pytest
import torch
from conftest import refusal

pytest.importorskip("triton")

from relation.kernels.flash_relation import launches
from relation.kernels.linear_relation.launch import Call


def test_more_tokens_than_a_launch_counts_are_refused():
    states = torch.empty(1, 1, 65_535 * 64 + 1, 48, device="meta")
    assert "at most 4,194,240 tokens" in refusal(lambda: launches.grid(states, 64))
    on_cpu = torch.empty(1, dtype=torch.float32).expand(1, 1, 65_535 * 16 + 1, 48)
    assert "1,048,560 tokens at most" in refusal(lambda: Call.of(on_cpu, on_cpu))
