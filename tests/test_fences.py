"""What `unfenced_products` finds in PTX, by hand-written examples and in Linear Relation's kernels.

FlashRelation's are in test_flash_launches.
"""

import importlib

import pytest
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation.kernels.factors import overwritten_factors
from relation.kernels.fences import Unfenced, count_products, unfenced_products
from relation.kernels.uniforms import unset_uniforms

PRODUCT = "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 0;"
FENCE = "fence.proxy.async.shared::cta;"
WAIT = "cp.async.wait_group 2;"
STORE = "st.shared.v4.b32 [%r1], {%r2, %r3, %r4, %r5};"
SYNC = "bar.sync 0;"


def found(*lines: str) -> list[tuple[int, str]]:
    return [(unfenced.line, unfenced.written) for unfenced in unfenced_products("\n".join(lines))]


def test_the_fence_lies_between_the_write_and_the_product():
    assert found(WAIT, SYNC, FENCE, PRODUCT) == []
    assert found(STORE, FENCE, SYNC, PRODUCT) == []
    assert found(FENCE, WAIT, SYNC, PRODUCT) == [(4, "copied")]
    assert found(WAIT, STORE, PRODUCT) == [(3, "copied"), (3, "stored")]
    assert found(PRODUCT, STORE, WAIT) == []
    assert count_products(f"{PRODUCT}\n{PRODUCT}") == 2


def test_tma_needs_none():
    copy = "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [x];"
    wait = "mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;"
    assert found(copy, "waitLoop:", wait, "@!complete bra.uni waitLoop;", PRODUCT) == []
    assert found("cp.async.bulk.wait_group.read 0;", PRODUCT) == []


def test_a_loop_brings_its_end_back_to_its_start():
    """As Triton 3.6 compiles a pipelined loop, with a fence before it, and as 3.7.1 does."""
    loop = ["$L__BB0_1:", PRODUCT, WAIT, SYNC, "@%p1 bra $L__BB0_1;", "ret;"]
    assert found(WAIT, FENCE, *loop) == [(4, "copied")]
    loop.insert(1, FENCE)
    assert found(WAIT, *loop) == []


def test_every_way_through_a_branch_counts():
    skips = ["@%p1 bra $L__BB0_2;", FENCE, "$L__BB0_2:", PRODUCT]
    assert found(STORE, *skips) == [(5, "stored")]
    never = ["bra.uni $L__BB0_2;", STORE, "$L__BB0_2:", PRODUCT]
    assert found(*never) == []
    ends = ["@%p1 bra $L__BB0_3;", STORE, "ret;", "$L__BB0_3:", PRODUCT]
    assert found(*ends) == []


def test_comments_are_no_instructions():
    assert found(f"// {STORE}", PRODUCT) == []
    assert unfenced_products(f"{STORE}\n{PRODUCT} // {FENCE}") == [Unfenced(2, "stored")]


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    "width",
    [pytest.param(60, marks=pytest.mark.slow), 64, pytest.param(80, marks=pytest.mark.slow)],
)
def test_linear_relations_products_wait_for_copies(width, monkeypatch):
    """Stores are left out: tiles that change their layout through shared memory look like them."""
    from fake_gpu import fake_gpu

    forward, backward, launches = (
        importlib.import_module(f"relation.kernels.linear_relation.{name}")
        for name in ("forward", "backward", "launches")
    )
    entry = next(e for e in launches.LAUNCHES["sm_90", 2] if e.widest >= width)
    for module in (forward, backward):
        monkeypatch.setattr(module, "select_launches", lambda *given: entry)
    p1, p2, info, g = torch.zeros(4, 1, 130, 2, width, dtype=torch.bfloat16).transpose(2, 3)
    with fake_gpu("sm_90") as compiled:
        y, _, *kept = forward.launch_forward(p1, p2, info, g, None, 2.0)
        backward.launch_backward(y, None, p1, p2, info, g, *kept, 2.0)
    assert len(compiled) >= 8
    for name, kernels in compiled.items():
        for kernel in kernels:
            unfenced = unfenced_products(kernel.asm["ptx"])
            assert [u for u in unfenced if u.written == "copied"] == [], name
            assert overwritten_factors(kernel) == 0, name
            assert unset_uniforms(kernel) == [], name
