"""Calls of both operators: again, at once, in CUDA graphs, compiled, and of growing length."""

from collections.abc import Callable, Iterable
from functools import partial

import pytest
import torch
from equations import differentiate
from exactness import assert_close, peak_bytes
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation import kernels
from relation.kernels.documents import Documents

if INTERPRETED:
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

OPERATORS = ("flash", "flash with documents", "linear")
Tensors = tuple[torch.Tensor, ...]


def draw(operator: str, seed: int, shape: tuple[int, ...] = (2, 4, 130, 64)) -> list[torch.Tensor]:
    """The inputs of an operator, p1, p2 and information first, and the gradients of its results."""
    torch.manual_seed(seed)
    B, H, T, D = shape
    *tokens, g = torch.randn(5, B, T, H, D, device="cuda").transpose(2, 3)
    p1, p2, info, dy = (x.bfloat16() for x in tokens)
    if operator != "linear":
        return [p1, p2, info, torch.tensor(0.5, device="cuda"), dy]
    # From head to head stronger retention, so that chunks of both kinds lie beside each other.
    g = -g.abs() * torch.logspace(-2, 1, H, device="cuda")[:, None, None]
    start, dfinal = torch.randn(2, B, H, D, D, device="cuda")
    return [p1, p2, info, g, start, dy, dfinal]


def call(operator: str, p1: torch.Tensor, *others: torch.Tensor) -> Tensors:
    """The results: Y, and C_T of Linear Relation."""
    if operator == "linear":
        p2, info, g, start = others
        return kernels.linear_relation(p1, p2, info, g, 2.0, start)
    documents = None
    if operator != "flash":
        B, _, T, _ = p1.shape
        first = torch.zeros(B, T, dtype=torch.bool, device="cuda")
        first[:, T // 3] = True
        # Without a wait for the GPU, so that a CUDA graph can hold it.
        documents = Documents.bounded(first, 2 * B)
    return (kernels.flash_relation(p1, *others, documents=documents),)


def run(operator: str, inputs: list[torch.Tensor], function: Callable | None = None) -> Tensors:
    """The results of an operator, or of a function of its inputs, and all gradients."""
    n = 5 if operator == "linear" else 4
    return differentiate(function or partial(call, operator), inputs[:n], *inputs[n:])


def assert_same(ours: Tensors, theirs: Tensors) -> None:
    for x, y in zip(ours, theirs, strict=True):
        assert torch.equal(x, y)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", OPERATORS)
class TestOnDevice:
    @pytest.mark.parametrize("width", [48, 64, 80, 96, 128])
    def test_equal_inputs_give_bitwise_equal_gradients(self, operator, width):
        inputs = draw(operator, 2, (4, 8, 1000, width))
        once = run(operator, inputs)
        for _ in range(200):
            assert_same(run(operator, inputs), once)

    @pytest.mark.parametrize("width", [48, 64, 80])
    def test_beside_each_other_on_streams_and_in_graphs(self, operator, width):
        """Four calls at once, then four graphs: bitwise what each gives alone."""
        inputs = [draw(operator, seed, (2, 4, 1000, width)) for seed in range(4)]
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


@pytest.mark.gpu
@pytest.mark.parametrize("operator", ["flash", "linear"])
def test_torch_compile_sees_no_graph_break(operator):
    def layer(p1, *others):
        y, *final = call(operator, 2 * p1, *others)
        return 2 * y.transpose(1, 2).flatten(2), *final

    compiled = torch.compile(layer, fullgraph=True)
    for length in (1000, 127):  # the second makes T dynamic
        inputs = draw(operator, 3, (2, 8, length, 48))
        place = 5 if operator == "linear" else 4
        inputs[place] = inputs[place].transpose(1, 2).flatten(2)
        eager, fused = (run(operator, inputs, function) for function in (layer, compiled))
        for ours, theirs in zip(fused, eager, strict=True):
            truth = theirs.double()
            assert_close(operator, ours, truth, truth, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("operator", "length"), [("flash", 8192), ("linear", 4096)])
def test_memory_is_linear_in_length(operator, length):
    """In the shorter one, too, every chunk of Linear Relation is a segment of its own."""

    def peak(length: int) -> int:
        inputs = draw(operator, 4, (1, 2, length, 64))
        return peak_bytes(lambda: run(operator, inputs))

    assert peak(2 * length) <= 2.01 * peak(length)
