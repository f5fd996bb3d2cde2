"""Packed documents, padding and shared heads equal separate documents and repeated heads."""

import pytest
import torch
from conftest import refusal
from equations import assert_close, differentiate, draw_linear
from test_backends import PLAIN, inputs_of, operator_of
from torch import Tensor

from relation.kernels.documents import Documents

# Rows of 41 tokens. Documents have one token or span tiles. No row needs the last tile's first one.
SIZES = ([1, 1, 17, 3, 19], [9, 32], [20, 21])

each_backend = pytest.mark.parametrize(("kind", "name"), PLAIN)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr("relation.ops.tiled.TILE", 8)


def packed() -> Documents:
    ids = [[n for n, size in enumerate(sizes) for _ in range(size)] for sizes in SIZES]
    return Documents.of(torch.tensor(ids))


def drawn(kind: str, *shape: int, heads: int | None = None) -> list[Tensor]:
    """Inputs of an operator in float64, with `heads` heads of p2 and information."""
    p1, p2, info, g = draw_linear(*shape)
    return [x.double() for x in inputs_of(kind, p1, p2[:, :heads], info[:, :heads], g)]


def pieces(x: Tensor) -> list[Tensor]:
    """Split a tensor (B, H, T, D) into its documents, in the order of the batch."""
    parts = [row.split(sizes, dim=1) for row, sizes in zip(x, SIZES, strict=True)]
    return [piece[None] for row in parts for piece in row]


@each_backend
@pytest.mark.parametrize("transport_self", [True, False])
def test_packed_is_document_by_document(kind, name, transport_self):
    """The output and all gradients. Lambda's gradient is the sum over the documents."""
    options = {} if kind in ("mha", "linear") else {"transport_self": transport_self}
    inputs = drawn(kind, 3, 2, 41, 6)
    (dy,) = draw_linear(3, 2, 41, 6)[:1]
    whole = differentiate(operator_of(kind, name, documents=packed(), **options), inputs, dy)
    states, shared = [x for x in inputs if x.ndim], [x for x in inputs if not x.ndim]
    alone = [
        differentiate(operator_of(kind, name, **options), (*own, *shared), g)
        for *own, g in zip(*(pieces(x) for x in (*states, dy)), strict=True)
    ]
    for actual, *expected in zip(whole, *alone, strict=True):
        if actual.ndim:
            for piece, truth in zip(pieces(actual), expected, strict=True):
                assert_close(piece, truth, 41 + 6, scale=8)
        else:
            assert_close(actual, sum(expected), 41 * 14)


@each_backend
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("heads", [1, 2])
def test_shared_heads_are_repeated_ones(kind, name, heads, documents):
    """The output and gradients. Those of shared heads are sums over the heads that share."""
    options = {"documents": packed()} if documents else {}
    inputs = drawn(kind, 3, 4, 41, 6, heads=heads)
    (dy,) = draw_linear(3, 4, 41, 6)[:1]
    actual = differentiate(operator_of(kind, name, **options), inputs, dy)

    def repeated(p1: Tensor, p2: Tensor, info: Tensor, *extra: Tensor) -> Tensor:
        p2, info = (x.repeat_interleave(4 // heads, dim=1) for x in (p2, info))
        return operator_of(kind, name, **options)(p1, p2, info, *extra)

    for ours, truth in zip(actual, differentiate(repeated, inputs, dy), strict=True):
        assert_close(ours, truth, 41 + 6)


def test_every_form_gives_the_same_documents():
    ids = torch.tensor([[3, 3, 4, 9, 9]])
    offsets = torch.tensor([0, 2, 3, 5])
    for documents in (Documents.of(ids), Documents.packed(offsets)):
        assert documents.starts.tolist() == [[0, 0, 2, 3, 3]]
        assert documents.ends.tolist() == [[2, 2, 3, 5, 5]]
        assert documents.positions.tolist() == [[0, 1, 0, 0, 1]]
        assert documents.offsets.tolist() == offsets.tolist()
        assert documents.longest == 2
    padded = Documents.padded(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]]))
    assert padded.positions.tolist() == [[0, 1, 0, 1], [0, 1, 2, 0]]
    assert padded.offsets.tolist() == [0, 2, 4, 7, 8] and padded.longest == 3


@pytest.mark.parametrize(
    ("make", "given", "message"),
    [
        (Documents.of, [[0, 0], [1, 0]], "decrease in row 1: 1 at token 0 and 0 after it"),
        (Documents.of, [0, 1], "of shape (2,)"),
        (Documents.of, [[0.0, 1.0]], "give an integer"),
        (Documents.of, [[True, False]], "give an integer"),
        (Documents.of, [[]], "B and T at least 1"),
        (Documents.packed, [0, 2, 2], "begin at 0 and increase"),
        (Documents.packed, [1, 2], "begin at 0 and increase"),
        (Documents.packed, torch.tensor([0, 5, 3, 9], dtype=torch.uint8), "uint8 of shape (4,)"),
        (Documents.packed, [0], "begin at 0 and increase"),
        (Documents.padded, [[1, 1], [0, 0]], "row 1 of the padding mask has no text"),
        (Documents.padded, [[1, 0, 1]], "row 0 of the padding mask has 2 pieces of text"),
        (Documents.padded, [1, 0], "shape (2,)"),
        (Documents.padded, [[1, 1, 2, 2]], "for numbered documents use Documents.of"),
        (Documents.of, torch.tensor([[200, 3]], dtype=torch.uint8), "decrease in row 0: 200 at"),
    ],
)
def test_wrong_documents_are_refused(make, given, message):
    assert message in refusal(lambda: make(torch.as_tensor(given)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("heads", [2, 4])
@pytest.mark.parametrize("kind", ["full", "calibrated"])
@pytest.mark.parametrize("transport_self", [True, False])
@pytest.mark.parametrize("documents", [None, packed()])
def test_flex_attention_spells_full_relation(kind, heads, transport_self, documents):
    """Only the value, because PyTorch has no gradient of FlexAttention on a CPU."""
    inputs = drawn(kind, 3, 4, 41, 6, heads=heads)
    options = {"transport_self": transport_self, "documents": documents}
    actual = operator_of(kind, "flex", **options)(*inputs)
    assert_close(actual, operator_of(kind, "reference", **options)(*inputs), 41 + 6)


@pytest.mark.gpu
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize(
    ("kind", "name", "width", "dtype", "options"),
    [
        ("mha", "flash", 48, torch.bfloat16, {}),
        ("mha", "flash", 60, torch.bfloat16, {}),
        ("mha", "efficient", 48, torch.float32, {}),
        ("mha", "flash", 48, torch.bfloat16, {"null": True}),
        ("mha", "cudnn", 48, torch.bfloat16, {"null": True}),
        ("full", "flex", 80, torch.bfloat16, {}),
        ("full", "flex", 80, torch.float32, {}),
        ("full", "flex", 384, torch.bfloat16, {}),
        ("calibrated", "flex", 48, torch.bfloat16, {}),
    ],
)
def test_fused_backends_err_as_the_definition_does(kind, name, width, dtype, options, documents):
    """The output and all gradients against FP64. The definition in `dtype` is the yardstick."""
    if documents and (options or name == "efficient"):
        pytest.skip("takes no documents")
    ids = (torch.rand(2, 515, generator=torch.Generator().manual_seed(5)) < 0.02).cumsum(1)
    options |= {"documents": Documents.of(ids.cuda())} if documents else {}
    inputs = [x.cuda().to(dtype if x.ndim else x.dtype) for x in drawn(kind, 2, 4, 515, width)]
    dy = draw_linear(2, 4, 515, width)[0].cuda().to(dtype)
    doubles = [x.double() for x in inputs]
    truth = differentiate(operator_of(kind, "reference", **options), doubles, dy.double())
    definition, actual = (
        differentiate(operator_of(kind, which, **options), inputs, dy)
        for which in ("reference", name)
    )
    for ours, yardstick, true in zip(actual, definition, truth, strict=True):
        error, allowed = ((x.double() - true).abs().max() for x in (ours, yardstick))
        assert error <= 2 * allowed + 1e-3 * true.abs().max()
