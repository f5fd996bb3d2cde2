"""FlashRelation against Full Relation's definition in float64, judged by `assert_exact`.

Without a GPU the kernels run in Triton's interpreter, in a separate process, because it is chosen
when the kernels are imported. tests/kernels/test_flash_gpu.py tests the compiled kernels.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from exactness import (
    assert_close_to_wide_scores,
    assert_dlam_exact,
    assert_exact,
    differentiate,
    draw,
    sharing,
    with_wide_scores,
)
from interpreter import INTERPRETED, TESTS, run_interpreted

from relation import kernels
from relation.kernels.documents import Documents


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_the_interpreter_reproduces_the_definition():
    run_interpreted(__file__)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_temperature_that_is_off_by_a_twentieth_is_found(dtype):
    inputs = draw(0, (1, 2, 512, 64), dtype)
    assert_close_to_wide_scores(inputs, with_wide_scores)
    with pytest.raises(AssertionError, match="of the definition's error"):
        assert_close_to_wide_scores(inputs, partial(with_wide_scores, tau=2.1))


def test_what_tma_cannot_describe_is_copied():
    """Rows or a start between multiples of 16 bytes, an expanded head, rows in another order."""
    pytest.importorskip("triton")
    from relation.kernels.flash_relation.launch import aligned

    x = torch.randn(2, 3, 18, 16).bfloat16()
    assert aligned(x) is x
    others = torch.cat([x, x[..., :1]], -1)[..., :-1], x[..., 1:], x[:, :1].expand(x.shape), x.mT
    for other in others:
        copy = aligned(other)
        assert torch.equal(copy, other) and copy is not other and aligned(copy) is copy


@pytest.fixture
def launch_with(monkeypatch) -> Iterator[Callable[..., None]]:
    """Return a function that changes fields of the Launches that the interpreter uses."""
    from relation.kernels.flash_relation import launches

    def change(**fields) -> None:
        monkeypatch.setattr(launches, "INTERPRETED", replace(launches.INTERPRETED, **fields))
        launches.select_launches.cache_clear()

    yield change
    launches.select_launches.cache_clear()


@pytest.fixture
def without_maximum(monkeypatch) -> None:
    """Use BF16's forward pass, which sums without a maximum and repairs rows that overflow."""
    from relation.kernels.flash_relation import triton_forward, triton_tiles

    monkeypatch.setattr(triton_tiles, "keeps_maximum", lambda dtype: False)
    monkeypatch.setattr(triton_forward, "REPAIRED_ROWS", 32)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    @pytest.mark.parametrize("length", [1, 2, 33])
    @pytest.mark.parametrize("width", [20, 48])
    def test_every_shape(self, length, width):
        """One batch; the tests of strides, documents and Exchange alone have several."""
        assert_exact(draw(0, (1, 2, length, width)))

    def test_half_precision(self):
        assert_exact(draw(1, (1, 2, 33, 20), torch.float16))
        assert_close_to_wide_scores(draw(1, (1, 2, 130, 48), torch.float16))

    def test_exchange_only(self):
        assert_exact(draw(2, (2, 1, 17, 19)), transport_self=False)

    @pytest.mark.parametrize(("width", "transport_self"), [(16, True), (48, False)])
    def test_documents(self, launch_with, width, transport_self):
        """Documents end inside blocks and at their edges. Blocks have several tiles."""
        from relation.kernels.flash_relation.launches import Launch

        rows, history = Launch(block_i=32, block_j=16), Launch(block_i=16, block_j=32)
        launch_with(forward=rows, repair=rows, p1=rows, p2_info=history)
        begins = torch.zeros(2, 81, dtype=torch.int64)
        begins[0, [1, 5, 32, 33, 63, 70]] = begins[1, [48, 64]] = 1
        documents = Documents.of(begins.cumsum(1))
        inputs = draw(12, (2, 2, 81, width))
        inputs = sharing(inputs, 1) if width == 48 else inputs
        assert_exact(inputs, transport_self=transport_self, documents=documents)

    @pytest.mark.parametrize(
        ("heads", "shared", "width", "transport_self"), [(4, 2, 16, True), (3, 1, 48, False)]
    )
    def test_heads_that_share(self, heads, shared, width, transport_self):
        inputs = sharing(draw(14, (1, heads, 17, width)), shared)
        assert_exact(inputs, transport_self=transport_self)

    def test_dlam(self):
        assert_dlam_exact((1, 1, 9, 16))
        documents = Documents.of(torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 2]]))
        assert_dlam_exact((1, 1, 9, 16), documents=documents)

    @pytest.mark.parametrize("lam", [-4.0, 0.0, 30.0])
    def test_large_scores_and_any_count_correction(self, lam):
        p1, *others = draw(3, (1, 2, 33, 16), lam=lam)
        assert_exact((20 * p1, *others), tau=0.7)

    @pytest.mark.parametrize("width", [48, 60])
    def test_blocks_of_several_tiles(self, launch_with, width):
        """As in the shipped launches: 32 rows with history in tiles of 16, and the reverse."""
        from relation.kernels.flash_relation.launches import Launch

        rows, history = Launch(block_i=32, block_j=16), Launch(block_i=16, block_j=32)
        launch_with(forward=rows, repair=rows, p1=rows, p2_info=history)
        for length in (1, 33, 64):
            assert_exact(draw(7, (2, 1, length, width)))

    @pytest.mark.parametrize(("correction", "transport_self"), [(0.5, True), (30.0, False)])
    def test_rows_whose_sums_grow_too_large_are_repaired(
        self, without_maximum, correction, transport_self
    ):
        """Scores reach 241 here.

        The backward pass reads a row's normaliser as one FP32 number. At 241, half a unit in its
        last place changes a weight by a factor of 7.6e-6. The backward pass also recomputes the
        scores, as exactly as the definition. In all, 1e-4 suffices: a tenth of BF16's slack.
        """
        p1, *others = draw(9, (2, 1, 51, 16), lam=correction)
        p1[0, :, 20:40] *= 60
        p1[1, 0] *= 12
        assert_exact((p1, *others), slack=1e-4, transport_self=transport_self)

    def test_scores_of_a_thousand_stay_finite(self):
        p1, p2, *others = draw(8, (1, 2, 50, 16), torch.float16)
        inputs = (40 * p1, 40 * p2, *others)
        assert all(x.isfinite().all() for x in differentiate(kernels.flash_relation, inputs))

    def test_any_strides(self):
        p1, p2, info, dy, lam = draw(4, (2, 2, 17, 20))
        p1 = p1.mT.contiguous().mT
        p2 = torch.cat([p2, p2], 2)[:, :, ::2][:, :, : p1.shape[2]]
        info = torch.randn(1, 1, 17, 20).expand(2, 2, 17, 20)
        assert_exact((p1, p2, info, torch.ones(()).expand_as(dy), lam))

    def test_lam_of_one_element_and_inputs_without_gradient(self):
        p1, p2, info, dy, lam = draw(5, (1, 1, 5, 16))
        lam = lam[None].requires_grad_()
        kernels.flash_relation(p1, p2, info, lam).backward(dy)
        assert lam.grad.shape == (1,)
        assert p1.grad is None


def test_importing_kernels_needs_no_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "from relation import kernels\n"
        "assert 'Triton is not installed' in kernels.why_unavailable('cuda')"
    )
    subprocess.run([sys.executable, "-c", script], cwd=TESTS.parent, check=True)
