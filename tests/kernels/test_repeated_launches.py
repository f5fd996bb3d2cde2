"""Calls of both operators: repeated, concurrent, in CUDA graphs, compiled, and longer."""

from collections.abc import Callable, Iterable
from functools import partial

import exactness
import pytest
import test_linear_kernels as linear
import torch
from interpreter import INTERPRETED

pytest.importorskip("triton")

from relation import kernels
from relation.kernels.documents import Documents

if INTERPRETED:
    pytest.skip("the interpreter launches nothing", allow_module_level=True)

OPERATORS = ("flash", "flash with documents", "linear")
Tensors = tuple[torch.Tensor, ...]


def draw(operator: str, seed: int, shape: tuple[int, ...] = (2, 4, 130, 64)) -> Tensors:
    """Return an operator's inputs and the gradients of its results."""
    if operator == "linear":
        p1, p2, info, g, *others = linear.draw(seed, shape, torch.bfloat16, "cuda", "channels")
        g[:, 0] = linear.retention("model", shape)[:, 0]  # head 0 has chunks of weak retention
        return p1, p2, info, g, *others
    return exactness.draw(seed, shape, torch.bfloat16, "cuda")


def run(operator: str, inputs: Tensors) -> Tensors:
    """Return the results and all gradients."""
    if operator == "linear":
        return linear.differentiate(kernels.linear_relation, inputs)
    if operator == "flash":
        return exactness.differentiate(kernels.flash_relation, inputs)
    B, _, T, _ = inputs[0].shape
    first = torch.zeros(B, T, dtype=torch.bool, device="cuda")
    first[:, T // 3] = True
    # `bounded` does not wait for the GPU, so a CUDA graph can capture the call.
    documents = Documents.bounded(first, 2 * B)
    return exactness.differentiate(kernels.flash_relation, inputs, documents=documents)


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
        """Four concurrent calls, then four graphs: every bit equals the result of a single call."""
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

    def test_inputs_that_start_one_number_further_on(self, operator):
        """Unaligned inputs, after a call with aligned inputs."""
        inputs = draw(operator, 5)
        expected = run(operator, inputs)
        moved = [
            x
            if x is None
            else x.new_empty(x.numel() + 1).as_strided(x.shape, x.stride(), 1).copy_(x)
            for x in inputs
        ]
        for ours, theirs in zip(run(operator, moved), expected, strict=True):
            truth = theirs.double()
            exactness.assert_close(operator, ours, truth, truth, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("operator", ["flash", "linear"])
def test_torch_compile_sees_no_graph_break(operator):
    function = {"flash": kernels.flash_relation, "linear": kernels.linear_relation}[operator]
    differentiate = {"flash": exactness.differentiate, "linear": linear.differentiate}[operator]

    def layer(p1, *others):
        results = function(2 * p1, *others)
        y, *final = results if isinstance(results, tuple) else (results,)
        return 2 * y.transpose(1, 2).flatten(2), *final

    compiled = torch.compile(layer, fullgraph=True)
    for length in (1000, 127):  # the second makes T dynamic
        inputs = list(draw(operator, 3, (2, 8, length, 48)))
        place = {"flash": 3, "linear": 5}[operator]  # index of the gradient of Y
        inputs[place] = inputs[place].transpose(1, 2).flatten(2)
        eager, fused = (differentiate(each, inputs) for each in (layer, compiled))
        for ours, theirs in zip(fused, eager, strict=True):
            truth = theirs.double()
            exactness.assert_close(operator, ours, truth, truth, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize(("operator", "length"), [("flash", 8192), ("linear", 4096)])
def test_memory_is_linear_in_length(operator, length):
    """At both lengths, every chunk of Linear Relation is a separate segment."""

    def peak(length: int) -> int:
        inputs = draw(operator, 4, (1, 2, length, 64))
        return exactness.peak_bytes(lambda: run(operator, inputs))

    assert peak(2 * length) <= 2.01 * peak(length)
