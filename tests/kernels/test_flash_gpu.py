"""FlashRelation's compiled kernels against Full Relation's definition in float64, on a GPU."""

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
)

from relation import kernels
from relation.kernels.documents import Documents

# Widths of the launch entries for Hopper with passes in Gluon.
GLUON_WIDTHS = (48, 64, 80, 96, 128)
# Widths with separate launches for many rows.
LARGE_WIDTHS = (60, 64, 88, 96, 104, 128)

# Where documents end in three rows of 700 tokens. They are short, long, or one token.
ENDS = [[1, 2, 65, 128, 300, 301, 700], [700], [64, 400, 700]]


def in_documents(ends: list[list[int]]) -> Documents:
    """Documents that end at `ends`, one list per row."""
    t = torch.arange(ends[0][-1])
    ids = [torch.bucketize(t, torch.tensor(row), right=True) for row in ends]
    return Documents.of(torch.stack(ids).cuda())


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

        for bound in ("LARGE", "LONG") if many_rows else ():
            monkeypatch.setattr(launch, bound, 1)
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

    @pytest.mark.parametrize("width", LARGE_WIDTHS)
    def test_as_many_rows_as_have_launches_of_their_own_and_fewer(self, width):
        # 65,536 and 65,504 rows over all heads.
        for length in (2048, 2047):
            assert_exact(draw(length, (8, 4, length, width), torch.bfloat16, "cuda"))
