"""Compare operators with peers at any shape: GPU and host time, memory, error against FP64.

    python -m relation bench operators --shapes 32,8,1024,48 4,32/8,4096,128 --documents 512

A shape is B,H,T,D. With H/K, the H heads share K heads of p2 and info (k and v). Every peer has its
own process, and the peers take turns. Ratios are over the time of the first peer, the subject.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch import Tensor

from relation import machine, records
from relation.bench.conditions import Conditions
from relation.bench.rounds import DTYPES, Answers, Timer, Workers, median_columns, ratio_columns
from relation.errors import InputError, RunError, check_among
from relation.kernels.documents import Documents
from relation.ops import causal_attention, chunked_linear_relation, full_relation, get_backend

MEASURES = "forward", "forward+backward"
_MOST_COPIES = 64
_COLUMNS = ("status", "reason", "error", "peak_bytes", "samples", "alone")
_CHECKED_TOKENS = 2048  # a T x T matrix in FP64 takes 32 MiB per head
_SAME_FUNCTION = 0.02  # BF16 rounds by 2^-9 of a value; a wrong function is off by far more


class Shape(NamedTuple):
    """The shape of a call: B, H, heads of p2 and info, T, D, and the mean document length or 0."""

    batch: int
    heads: int
    kv_heads: int
    length: int
    width: int
    documents: int = 0

    @classmethod
    def parse(cls, text: str, documents: int = 0) -> "Shape":
        """Parse "B,H,T,D" or "B,H/K,T,D". Raises InputError if the text is neither."""
        try:
            B, H, T, D = text.split(",")
            heads, _, shared = H.partition("/")
            numbers = int(B), int(heads), int(shared or heads), int(T), int(D)
        except ValueError:
            raise InputError(f"shape {text!r}: give B,H,T,D or B,H/K,T,D") from None
        # A token alone has no gradient of p1 and p2 to compare.
        if min(numbers) < 1 or numbers[3] < 2 or numbers[1] % numbers[2]:
            raise InputError(f"shape {text!r}: give positive numbers, T > 1, and K a divisor of H")
        return cls(*numbers, documents)


def ragged_documents(shape: Shape, device: torch.device) -> Documents | None:
    """Return documents of random length, with a mean of `shape.documents` tokens; None for 0."""
    if not shape.documents:
        return None
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(shape.batch, shape.length, generator=generator)
    return Documents.of((uniform < 1 / shape.documents).cumsum(1).to(device))


Call = Callable[..., Tensor | tuple[Tensor, Tensor]]  # y; Linear Relation also returns a state


class Peer(NamedTuple):
    """An implementation: the names of its inputs, its definition, and a function that builds it.

    build(device) returns a function of the inputs and `documents`. It raises InputError if the
    device cannot run the implementation.
    """

    takes: tuple[str, ...]
    definition: Call
    build: Callable[[torch.device], Call]


QKV = ("p1", "p2", "info")
_OPERATORS = {
    "mha": (QKV, causal_attention),
    "full": ((*QKV, "lam"), full_relation),
    "linear": ((*QKV, "g"), chunked_linear_relation),
}


def _backend(operator: str, name: str) -> Peer:
    return Peer(*_OPERATORS[operator], lambda device: get_backend(operator, name, device).call)


PEERS: dict[str, Peer] = {
    "flash-relation": _backend("full", "flash"),
    "flash-attention-2": _backend("mha", "flash"),
    "cudnn": _backend("mha", "cudnn"),
    "flex": _backend("full", "flex"),
    "materialised": _backend("full", "materialised"),
    "materialised-compiled": _backend("full", "materialised")._replace(
        build=lambda device: torch.compile(full_relation, dynamic=False)
    ),
    "linear-relation": _backend("linear", "flash"),
    # Inputs like a trained layer's: every eighth channel has learned to forget.
    "linear-forgetful": _backend("linear", "flash")._replace(takes=(*QKV, "forgetful")),
    "tiled": _backend("full", "tiled"),
    "attention": _backend("mha", "reference"),
    "linear-chunked": _backend("linear", "chunked"),
}
_BY_DEFAULT = {
    "cuda": ("flash-relation", "flash-attention-2", "cudnn", "flex", "materialised-compiled"),
    "cpu": ("tiled", "attention", "materialised"),
}


def draw(
    shape: Shape, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return random inputs for every peer by name, and dy, in memory (B, T, H, D) as in a model.

    p1, dy: (B, H, T, D). p2, info: (B, K, T, D). lam: a scalar. g, forgetful: (B, H, T, D) FP32,
    log alpha of an untrained layer and of a layer that has learned to forget.
    """
    B, H, K, T, D, _ = shape

    def normal(heads: int) -> Tensor:
        stored = torch.randn(B, T, heads, D, dtype=dtype, device=device, generator=generator)
        return stored.transpose(1, 2)

    # alpha = exp(-A dt), A from 1 to 16 per head, dt log-uniform from 0.001 to 0.1, as in KDA.
    A = 1 + 15 * torch.rand(1, H, 1, 1, device=device, generator=generator)
    uniform = torch.rand(B, T, H, D, device=device, generator=generator).transpose(1, 2)
    g = -A * 10 ** (2 * uniform - 3)
    forgetful = g.clone()
    strong = torch.rand(g[..., ::8].shape, device=device, generator=generator)
    forgetful[..., ::8] = -30 * strong
    inputs = {"p1": normal(H), "p2": normal(K), "info": normal(K), "dy": normal(H), "g": g}
    inputs |= {"lam": torch.tensor(0.5, device=device), "forgetful": forgetful}
    return {name: x.requires_grad_(name != "dy") for name, x in inputs.items()}


def peer_calls(name: str, precision: str, device: torch.device, shape: Shape):
    """A workload that times one peer.

    Its facts are the error against FP64, peak memory and host time. Raises RunError if the peer
    computes a different function.
    """
    peer = PEERS[name]
    if device.type == "cuda":
        torch.compiler.reset()  # otherwise PyTorch silently runs the ninth shape eagerly
    call = partial(peer.build(device), documents=ragged_documents(shape, device))
    generator = torch.Generator(device).manual_seed(0)
    copies = [draw(shape, DTYPES[precision], device, generator)]
    nbytes = sum(copies[0][name].nbytes for name in (*peer.takes, "dy"))
    if device.type == "cuda":
        # One copy more than the L2 cache holds, so no call finds its inputs in the cache.
        cache = torch.cuda.get_device_properties(device).L2_cache_size  # bytes
        for _ in range(min(_MOST_COPIES, math.ceil(cache / nbytes))):
            copies.append(draw(shape, DTYPES[precision], device, generator))
    turn = itertools.cycle(copies)

    def forward() -> None:
        values = next(turn)
        call(*(values[name] for name in peer.takes))

    def forward_backward() -> None:
        values = next(turn)
        inputs = [values[name] for name in peer.takes]
        y = call(*inputs)
        torch.autograd.grad(y[0] if isinstance(y, tuple) else y, inputs, values["dy"])

    answer = {"error": _error(peer, DTYPES[precision], shape, device)}
    calls = zip(MEASURES, (forward, forward_backward), strict=True)
    timers = {measure: Timer(device, call, len(copies)) for measure, call in calls}
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        forward_backward()
        torch.cuda.synchronize(device)
        answer["peak_bytes"] = torch.cuda.max_memory_allocated(device) - before
    while (measure := (yield answer)) is not None:
        answer = timers[measure].seconds()
    yield {f"host {measure}": timer.host_seconds() for measure, timer in timers.items()}


def _error(peer: Peer, dtype: torch.dtype, shape: Shape, device: torch.device) -> float:
    """Return the largest relative RMS error of Y and the gradients of p1, p2, info against FP64.

    It checks one sequence, at most two heads of p2 and info, and at most 2048 tokens. The tests
    check lam's gradient, a scalar that needs many draws. Raises RunError for a different function.
    """
    shared = min(2, shape.kv_heads)
    heads, length = shared * shape.heads // shape.kv_heads, min(shape.length, _CHECKED_TOKENS)
    part = Shape(1, heads, shared, length, shape.width, shape.documents)
    inputs = draw(part, dtype, device, torch.Generator(device).manual_seed(1))
    results, dy = [], inputs["dy"]
    for call, cast in ((peer.build(device), torch.clone), (peer.definition, Tensor.double)):
        leaves = [cast(inputs[name]).detach().requires_grad_() for name in peer.takes]
        y = call(*leaves, documents=ragged_documents(part, device))
        y = y[0] if isinstance(y, tuple) else y
        results.append((y, *torch.autograd.grad(y, leaves[:3], dy.to(y.dtype))))
    errors = [
        ((ours.double() - truth).square().sum() / truth.square().sum()).sqrt()
        for ours, truth in zip(*results, strict=True)
    ]
    worst = torch.stack(errors).max().item()  # NaN if an error is NaN
    if not worst <= _SAME_FUNCTION:
        raise RunError(f"it is off its definition: the error is {worst:.2g} of the RMS value")
    return worst


def rows_of(
    by_peer: dict[str, Answers], subject: str, shape: Shape, precision: str, conditions: dict
) -> Iterator[dict]:
    """Yield a row per measure and peer; conditions: the columns of the `Conditions` meanwhile."""
    for measure, (name, answers) in itertools.product(MEASURES, by_peer.items()):
        yield {
            "peer": name,
            "measure": measure,
            **shape._asdict(),
            "precision": precision,
            **{n: answers.columns(measure).get(n) for n in _COLUMNS},
            **median_columns("seconds", answers.samples.get(measure, [])),
            **ratio_columns(answers, by_peer[subject], measure),
            "host_seconds": answers.facts.get(f"host {measure}"),
            **conditions,
        }


def table(rows: Sequence[dict]) -> str:
    """Return a table of milliseconds, ratios with intervals, host milliseconds, error, status."""
    numbers = ["seconds", "host_seconds", "ratio", "ratio_low", "ratio_high", "error"]
    # A column that is all None would be printed as None.
    frame = pd.DataFrame(rows).astype(dict.fromkeys(numbers, float)).fillna({"reason": "-"})
    frame["ms"], frame["host ms"] = 1e3 * frame["seconds"], 1e3 * frame["host_seconds"]
    shown = [*Shape._fields, "measure", "peer", "ms", "host ms", "ratio", "ratio_low", "ratio_high"]
    shown += ["error", "status", "reason"]
    return frame[shown].to_string(index=False, float_format="{:.3g}".format, na_rep="-")


def main(argv: Sequence[str] | None = None) -> None:
    """Run `python -m relation bench operators`: measure, print a table and write Parquet."""
    about = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser("python -m relation bench operators", description=about)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shapes", nargs="+", default=["32,8,1024,48"], metavar="B,H[/K],T,D")
    parser.add_argument("--documents", type=int, default=0, help="mean length; 0: one per row")
    parser.add_argument("--peers", help=f"comma-separated, subject first; from {', '.join(PEERS)}")
    parser.add_argument("--precision", choices=tuple(DTYPES), default=None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("results/bench/operators.parquet"))
    options = parser.parse_args(argv)
    peers = options.peers.split(",") if options.peers else list(_BY_DEFAULT[options.device])
    for name in peers:
        check_among(name, PEERS, f"unknown peer {name!r}")
    if options.rounds < 1 or options.documents < 0 or options.documents == 1:
        raise InputError("give at least 1 round, and documents of 2 or more tokens, or 0")
    if options.output.is_dir():
        raise InputError(f"--output {options.output} is a folder; give a file")
    shapes = [Shape.parse(text, options.documents) for text in options.shapes]
    precision = options.precision or ("bf16" if options.device == "cuda" else "fp32")
    workloads, rows = {name: partial(peer_calls, name, precision) for name in peers}, []
    progress = machine.Progress("bench operators", len(shapes), "shapes")
    with machine.claim(options.device, empty=True) as device, progress:
        conditions = Conditions(device)
        origin = records.origin("", machine.describe(device))
        with Workers(workloads, conditions) as processes:
            for shape in shapes:
                by_peer = processes.compare((shape,), MEASURES, options.rounds)
                rows += rows_of(by_peer, peers[0], shape, precision, conditions.columns())
                progress.advance(1, ",".join(map(str, shape)))
                with records.atomic(options.output) as temporary:  # save after each shape
                    pd.DataFrame(rows).assign(**origin).to_parquet(temporary)
    print(f"{origin['device']}, {precision}; a ratio is the time over that of {peers[0]}")
    print(table(rows))
    print(options.output)
