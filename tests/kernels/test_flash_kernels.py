"""FlashRelation against Full Relation's definition in float64, judged by `assert_exact`.

Without a GPU the kernels run in Triton's interpreter, in a separate process, because it is chosen
when the kernels are imported. Tests marked gpu run them compiled.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from exactness import (
    SLACK,
    assert_close_to_wide_scores,
    assert_dlam_exact,
    assert_exact,
    differentiate,
    draw,
    poisoned_memory,
    sharing,
    with_wide_scores,
)
from interpreter import INTERPRETED, TESTS, run_interpreted

from relation import kernels
from relation.kernels.documents import Documents

# Widths of the launch entries for Hopper with passes in Gluon.
GLUON_WIDTHS = (48, 64, 80, 96, 128)
# Widths with separate launches for many rows.
LARGE_WIDTHS = (60, 64, 88, 96, 104, 128)

# Where documents end in three rows of 700 tokens. They are short, long, or one token.
ENDS = [[1, 2, 65, 128, 300, 301, 700], [700], [64, 400, 700]]


def in_documents(ends: list[list[int]], device="cuda") -> Documents:
    """Documents that end at `ends`, one list per row."""
    t = torch.arange(ends[0][-1])
    ids = [torch.bucketize(t, torch.tensor(row), right=True) for row in ends]
    return Documents.of(torch.stack(ids).to(device))


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
    from relation.kernels.flash_relation.launch import (
        aligned,
        aligned_rows,
        empty_aligned,
        without_gaps,
    )

    x = torch.randn(2, 3, 18, 16).bfloat16()
    assert aligned(x) is x
    others = torch.cat([x, x[..., :1]], -1)[..., :-1], x[..., 1:], x[:, :1].expand(x.shape), x.mT
    for other in others:
        copy = aligned(other)
        assert torch.equal(copy, other) and copy is not other and aligned(copy) is copy
    rows = x[..., 0].float()
    unaligned = rows.new_zeros(97)[1:].view(2, 3, 16)
    for each in (rows, rows[..., :16], unaligned):
        copy = aligned_rows(each)
        assert torch.equal(copy, each) and copy.stride(1) % 4 == 0 and copy.data_ptr() % 16 == 0
    padded = empty_aligned(x[..., :15]).copy_(x[..., :15])
    assert aligned(padded) is padded and padded.stride(1) == 16
    result = without_gaps(padded)
    assert torch.equal(result, padded) and result.transpose(1, 2).is_contiguous()


@pytest.fixture
def several_tiles(monkeypatch) -> Iterator[None]:
    """As in the shipped launches: 32 rows with history in tiles of 16, and the reverse."""
    from relation.kernels.flash_relation import launches

    rows, history = launches.Launch(block_i=32, block_j=16), launches.Launch(block_i=16, block_j=32)
    entry = launches.Launches(128, rows, rows, rows, history)
    monkeypatch.setattr(launches, "INTERPRETED", entry)
    launches.select_launches.cache_clear()
    yield
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
    def test_documents(self, several_tiles, width, transport_self):
        """Documents end inside tiles and at their edges, and span blocks, which have two tiles."""
        documents = in_documents([[1, 5, 32, 33, 63, 70, 81], [16, 41, 81]], "cpu")
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
        # Two blocks of rows.
        assert_dlam_exact((1, 1, 17, 16), documents=in_documents([[2, 8, 17]], "cpu"))

    @pytest.mark.parametrize("lam", [-4.0, 0.0, 30.0])
    def test_large_scores_and_any_count_correction(self, lam):
        p1, *others = draw(3, (1, 2, 33, 16), lam=lam)
        assert_exact((20 * p1, *others), tau=0.7)

    @pytest.mark.parametrize("width", [48, 60])
    def test_blocks_of_several_tiles(self, several_tiles, width):
        for length in (1, 33, 64):
            assert_exact(draw(7, (2, 1, length, width)))

    @pytest.mark.parametrize(
        ("correction", "transport_self", "unit"), [(0.5, True, 1.0), (30.0, False, 2.0**50)]
    )
    def test_rows_whose_sums_grow_too_large_are_repaired(
        self, without_maximum, correction, transport_self, unit
    ):
        """Scores reach 241 here, and information 2^50. In one block only one row is repaired.

        The backward pass reads a row's normaliser as one FP32 number. At 241, half a unit in its
        last place changes a weight by a factor of 7.6e-6. The backward pass also recomputes the
        scores, as exactly as the definition. In all, 1e-4 suffices: a tenth of BF16's slack.
        """
        p1, p2, info, *others = draw(9, (2, 1, 51, 16), lam=correction)
        p1[0, :, 20:33] *= 60
        p1[1, 0] *= 25
        inputs = (p1, p2, unit * info, *others)
        assert_exact(inputs, slack=1e-4, transport_self=transport_self)

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


@pytest.mark.gpu
class TestOnDevice:
    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [16, 32, 48, 60, 64, 80, 96, 128])
    def test_every_length(self, dtype, width):
        for length in (1, 2, 17, 63, 64, 65, 127, 1000, 1024, 2048, 4096):
            # A row's entries share one rounding of dU. With few rows, chance decides the maximum.
            batch = max(1, 128 // length)
            assert_exact(draw(length, (batch, 3, length, width), dtype, "cuda"))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_rows_whose_sums_grow_too_large_are_repaired(self, width):
        p1, *others = draw(9, (2, 3, 2100, width), torch.bfloat16, "cuda")
        p1[0, :, 40:60] *= 30
        p1[1, 1, 1500:] *= 12
        assert_exact((p1, *others))
        documents = in_documents([[50, 1300, 2100], [2100]])
        assert_exact((p1, *others), documents=documents)

    @pytest.mark.parametrize("dtype", SLACK)
    def test_scores_of_a_thousand_stay_finite(self, dtype):
        p1, p2, *others = draw(8, (2, 3, 200, 64), dtype, "cuda")
        inputs = (40 * p1, 40 * p2, *others)
        with poisoned_memory():
            results = differentiate(kernels.flash_relation, inputs)
        assert all(x.isfinite().all() for x in results)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("transport_self", [True, False])
    def test_dlam(self, dtype, transport_self):
        assert_dlam_exact((2, 3, 127, 64), dtype, "cuda", transport_self=transport_self)
        documents = in_documents([[50, 51, 127], [127]])
        options = {"documents": documents, "transport_self": transport_self}
        assert_dlam_exact((2, 3, 127, 64), dtype, "cuda", **options)

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_exchange_only_large_scores_and_any_strides(self, width, dtype):
        p1, p2, info, dy, lam = draw(1, (2, 3, 127, width), dtype, "cuda")
        assert_exact((p1, p2, info, dy, lam), transport_self=False)
        for correction in (-4.0, 30.0):
            assert_exact((8 * p1, p2, info, dy, torch.full_like(lam, correction)), tau=0.7)
        assert_exact((p1.mT.contiguous().mT, p2.contiguous(), info[:1, :1].expand_as(p1), dy, lam))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    @pytest.mark.parametrize("shared", [1, 2])
    def test_heads_that_share(self, width, shared):
        for length in (65, 1000):
            assert_exact(sharing(draw(3, (2, 4, length, width), torch.bfloat16, "cuda"), shared))

    @pytest.mark.parametrize("dtype", SLACK)
    @pytest.mark.parametrize("width", [48, 60, 64, 80, 96, 128])
    def test_documents(self, width, dtype):
        documents = in_documents(ENDS)
        inputs = draw(11, (3, 4, 700, width), dtype, "cuda")
        assert_exact(inputs, documents=documents)
        shared = sharing(inputs, 2)
        assert_exact(shared, documents=documents, transport_self=False)

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_heads_in_several_groups(self, monkeypatch, width):
        from relation.kernels.flash_relation import launches

        monkeypatch.setattr(launches, "cache_bytes", lambda device: 1 << 20)
        inputs = draw(3, (3, 4, 300, width), torch.bfloat16, "cuda")
        assert launches.grid(inputs[0], 64)[2] > 1
        assert_exact(inputs)

    @pytest.mark.parametrize("width", [60, *GLUON_WIDTHS])
    def test_an_expanded_gradient_is_copied(self, width):
        p1, p2, info, dy, lam = draw(3, (2, 3, 300, width), torch.bfloat16, "cuda")
        assert_exact((p1, p2, info, dy[:1, :1, :1].expand_as(p1), lam))

    @pytest.mark.parametrize("width", GLUON_WIDTHS)
    def test_passes_in_gluon_and_in_triton(self, monkeypatch, width):
        """Gluon, which Hopper uses for these inputs, and Triton, which other GPUs use."""
        from relation.kernels.flash_relation import launch

        entry = launch.select_launches(torch.device("cuda", 0), 2, width)
        inputs = draw(5, (2, 3, 300, width), torch.bfloat16, "cuda")
        in_gluon = launch.chosen("forward", entry, inputs[0], False) is not None
        assert in_gluon == (torch.cuda.get_device_capability(0) == (9, 0))
        many_rows = draw(6, (4, 2, 1024, width), torch.bfloat16, "cuda")
        assert_exact(inputs)
        assert_close_to_wide_scores(many_rows)
        monkeypatch.setattr(launch, "chosen", lambda *given: None)
        assert_exact(inputs)
        assert_close_to_wide_scores(many_rows)
        assert_exact(inputs, transport_self=False)

    @pytest.mark.parametrize(
        ("width", "many_rows"),
        [*((w, False) for w in (40, *GLUON_WIDTHS, 72)), *((w, True) for w in LARGE_WIDTHS)],
    )
    @pytest.mark.parametrize("programs", ["one for all blocks", "as shipped"])
    def test_programs_that_take_many_blocks(self, monkeypatch, width, many_rows, programs):
        """At any length, also with the launches for many rows."""
        from relation.kernels.flash_relation import hopper_launch, launch

        if many_rows:
            monkeypatch.setattr(launch, "is_large", lambda *given: True)
        if programs == "one for all blocks":
            monkeypatch.setattr(hopper_launch, "multiprocessors", lambda device: 1)
        for length in (1, 63, 64, 65, 128, 129, 192, 193, 1000):
            inputs = draw(length, (max(3, 128 // length), 6, length, width), torch.bfloat16, "cuda")
            assert_exact(inputs)
            assert_exact(sharing(inputs, 2), transport_self=False)
        once = differentiate(kernels.flash_relation, inputs)
        for _ in range(50):
            again = differentiate(kernels.flash_relation, inputs)
            assert all(map(torch.equal, once, again))
        documents = in_documents(ENDS)
        inputs = draw(12, (3, 6, 700, width), torch.bfloat16, "cuda")
        assert_exact(inputs, documents=documents)
        assert_exact(sharing(inputs, 2), documents=documents, transport_self=False)
        # More blocks than an H200 runs programs.
        assert_exact(draw(6, (1, 14, 2048, width), torch.bfloat16, "cuda"))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("width", LARGE_WIDTHS)
    def test_as_many_rows_as_have_launches_of_their_own_and_fewer(self, width, dtype):
        # 65,536 and 65,504 rows over all heads.
        for length in (2048, 2047):
            assert_exact(draw(length, (8, 4, length, width), dtype, "cuda"))
