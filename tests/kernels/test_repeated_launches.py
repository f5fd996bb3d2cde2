"""A call gives the same wherever its tensors lie and whatever was called before it."""

import gc
import weakref
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation import kernels
from relation.kernels.documents import Documents

if INTERPRETED:
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

from fake_gpu import fake_gpu

OPERATORS = ("flash", "flash with documents", "linear")
Tensors = tuple[torch.Tensor, ...]


def test_nothing_keeps_a_calls_tensors(monkeypatch):
    from relation.kernels.flash_relation import launch
    from relation.kernels.flash_relation.launches import load_launches

    entry = next(e for e in load_launches()["sm_90"] if e.bits == 16 and e.widest == 64)
    monkeypatch.setattr(launch, "select_launches", lambda *given: entry)
    given = [x.bfloat16().transpose(1, 2) for x in torch.randn(4, 1, 130, 2, 64)]
    alive = [weakref.ref(x) for x in given]
    with fake_gpu("sm_90"):
        for _ in range(2):
            p1, p2, info, dy = given
            kept = launch.launch_forward(p1, p2, info, torch.tensor(0.5), 2.0, True)
            launch.launch_backward(dy, p1, p2, info, *kept, 2.0, True)
    del given, p1, p2, info, dy, kept
    gc.collect()
    assert [x() for x in alive] == [None] * 4


def draw(operator: str, seed: int, length: int = 130, width: int = 64) -> list[torch.Tensor]:
    """p1, p2, information, lambda or retention, and the gradient of the result."""
    torch.manual_seed(seed)
    *tokens, g = torch.randn(5, 2, length, 4, width, device="cuda").transpose(2, 3)
    p1, p2, info, dy = (x.bfloat16() for x in tokens)
    last = torch.tensor(0.5, device="cuda") if "flash" in operator else -g.abs()
    return [p1, p2, info, last, dy]


def run(operator: str, inputs: list[torch.Tensor]) -> Tensors:
    """The result and all gradients."""
    *leaves, dy = inputs
    leaves = [x.detach().requires_grad_() for x in leaves]
    if operator == "linear":
        y, _ = kernels.linear_relation(*leaves)
    else:
        B, _, T, _ = dy.shape
        documents = None
        if operator != "flash":
            first = torch.zeros(B, T, dtype=torch.bool, device="cuda")
            first[:, T // 3] = True
            # Without a wait for the GPU, so that a CUDA graph can hold it.
            documents = Documents.bounded(first, 2 * B)
        y = kernels.flash_relation(*leaves, documents=documents)
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """The same numbers and strides, `by` elements into memory of their own."""
    memory = torch.empty(x.numel() + by, dtype=x.dtype, device=x.device)
    order = sorted(range(x.ndim), key=lambda k: -x.stride(k))
    laid = memory[by:].view([x.shape[k] for k in order])
    return laid.permute([order.index(k) for k in range(x.ndim)]).copy_(x)


def assert_near(ours: Tensors, theirs: Tensors) -> None:
    """Of another layout the compiler may contract other products and sums."""
    for x, y in zip(ours, theirs, strict=True):
        assert (x.double() - y.double()).norm() <= 1e-2 * y.double().norm()


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operator", OPERATORS)
class TestOnDevice:
    def test_elsewhere_in_memory_aligned_and_not(self, operator):
        first = [run(operator, draw(operator, seed)) for seed in range(3)]
        for seed in (0, 1, 2, 1, 0):
            assert_same(run(operator, draw(operator, seed)), first[seed])
        for by in (8, 1, 8, 1):  # of 16 bytes, and out of step with them
            moved = [shifted(x, by) if x.ndim else x for x in draw(operator, 0)]
            assert_near(run(operator, moved), first[0])

    def test_other_strides_and_lengths_between(self, operator):
        inputs = draw(operator, 0)
        first = run(operator, inputs)
        for length in (64, 1, 257):
            run(operator, draw(operator, 1, length))
            by_head = [x.contiguous() for x in inputs]
            assert_near(run(operator, by_head), first)
            by_column = [x.mT.contiguous().mT if x.ndim else x for x in inputs]
            assert_near(run(operator, by_column), first)
            assert_same(run(operator, inputs), first)

    @pytest.mark.parametrize("width", [48, 64, 80])
    def test_beside_each_other_on_streams_and_in_graphs(self, operator, width):
        """Four calls at once, then four graphs: bitwise what each gives alone."""
        inputs = [draw(operator, seed, 1000, width) for seed in range(4)]
        alone = [run(operator, x) for x in inputs]
        streams = [torch.cuda.Stream() for _ in inputs]

        def at_once(calls: Iterable[Callable]) -> list:
            torch.cuda.synchronize()
            results = []
            for stream, call in zip(streams, calls, strict=True):
                with torch.cuda.stream(stream):
                    results.append(call())
            torch.cuda.synchronize()
            return results

        for _ in range(10):
            found = at_once(partial(run, operator, x) for x in inputs)
            assert_same(sum(found, ()), sum(alone, ()))
        graphs, captured = [torch.cuda.CUDAGraph() for _ in inputs], ()
        for graph, given in zip(graphs, inputs, strict=True):
            with torch.cuda.graph(graph):
                captured += run(operator, given)
        for _ in range(10):
            for x in captured:
                x.fill_(torch.nan)
            at_once(graph.replay for graph in graphs)
            assert_same(captured, sum(alone, ()))

    def test_replayed_in_a_cuda_graph_with_other_values(self, operator):
        inputs, others = draw(operator, 0), draw(operator, 1)
        first, second = run(operator, inputs), run(operator, others)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run(operator, inputs)
        for values, expected in ((others, second), (draw(operator, 0), first), (others, second)):
            for x, value in zip(inputs, values, strict=True):
                x.copy_(value)
            for _ in range(2):
                for x in captured:
                    x.fill_(torch.nan)
                graph.replay()
                torch.cuda.synchronize()
                assert_same(captured, expected)
