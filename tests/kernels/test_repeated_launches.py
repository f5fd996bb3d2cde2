"""A call gives the same beside others, on any stream and replayed in a CUDA graph."""

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

OPERATORS = ("flash", "flash with documents", "linear")
Tensors = tuple[torch.Tensor, ...]


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


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("operator", OPERATORS)
class TestOnDevice:
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
