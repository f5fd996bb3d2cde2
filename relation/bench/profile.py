"""Where the time of one training step goes: the kernels of a profile, sorted into parts.

A kernel's part follows from its name and from what launched it.
"""

import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from relation.bench.steps import Setup, build_step
from relation.bench.timing import reclaim, synchronize
from relation.errors import InputError
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.pipeline.origin import origin
from relation.spec import SystemsSpec, canonical_hash
from relation.store.layouts import PROFILE
from relation.store.parquet import write_parquet
from relation.train.step import UpdateStep
from relation.variants import ModelConfig, model_config

OPERATOR, PROJECTIONS, FFN = "operator", "projections", "FFN"
NORM, ELEMENTWISE, CASTS, LOSS = "norm", "RoPE and sums", "casts", "loss"
OPTIMISER, CLIPPING, UNCLASSIFIED, IDLE = "optimiser", "clipping", "unclassified", "idle"
PARTS = (
    OPERATOR,
    PROJECTIONS,
    FFN,
    NORM,
    ELEMENTWISE,
    CASTS,
    LOSS,
    OPTIMISER,
    CLIPPING,
    UNCLASSIFIED,
    IDLE,
)

# The operator of the tables of RoPE.
_TABLES = "relation::cos_sin"
# The range that `relation.train.step` opens around clipping.
CLIPPING_RANGE = "clipping"

_LOSS_KERNEL = "cross_entropy_kernel"
_OPERATOR = re.compile(r"attention|TiledRelation|relation::(flash|linear)_|flash_(fwd|bwd)")
# What an operator is called in the name of a generated kernel that moves its inputs or results.
_NEAR_OPERATOR = re.compile(
    r"_scaled_dot_product_[a-z]+_attention(_for_cpu)?(_backward)?|(flash|linear)_relation(_backward)?"
)
_FACTORS = {
    "aten::mm": slice(0, 2),
    "aten::bmm": slice(0, 2),
    "aten::addmm": slice(1, 3),
    "aten::baddbmm": slice(1, 3),
}
_GENERATED = re.compile(r"^(?:triton|cpp)_(?:[a-z]+_)?fused_(.*?)_?\d*$")
_MOVES = re.compile(
    r"^(_to_copy|_unsafe_view|unsafe_view|view|t|clone|permute|transpose|copy|copy_|to|cat|split|_)+$"
)
_SCALED = re.compile(r"_to_copy_mul(_t)?")


@dataclass(frozen=True)
class Kernel:
    """One kernel that ran, or on a CPU one operation without those that it called.

    within: names of the operations and ranges that launched it, outermost first. dims: the input
    shapes of the innermost matrix product among them, None without one.
    """

    name: str
    seconds: float
    within: tuple[str, ...] = ()
    dims: tuple[tuple[int, ...], ...] | None = None


def factors(name: str) -> slice | None:
    """Which inputs of an operation are the two matrices it multiplies; None for another kind."""
    return _FACTORS.get(name)


class Classifier:
    """Sorts the kernels of one model's step into PARTS, for micro-batches of `tokens` tokens.

    What is launched inside the optimiser, inside clipping or by an attention or relation operator
    is theirs. A matrix product belongs to the weight whose shape it has. A kernel that Inductor
    generated carries the names of the operations fused into it, and goes to the first of loss,
    FFN, norm, RoPE and casts that claims one of them; so a residual sum that is computed by a
    norm's kernel counts as norm. One that does nothing but move what an operator reads or wrote is
    the operator's.
    """

    def __init__(self, config: ModelConfig, tokens: int):
        self.tokens = tokens
        d, d_ff, width = config.d_model, config.d_ff, config.head_dim
        # A pair that two parts share says nothing.
        owners: dict[tuple[int, ...], set[str]] = {}
        for part, shapes in (
            (LOSS, [(config.vocab_size, d)]),
            (FFN, [(d_ff, d), (2 * d_ff, d)]),
            (PROJECTIONS, [(d, d), (3 * d, d), (width, width)]),
        ):
            for shape in shapes:
                owners.setdefault(tuple(sorted(shape)), set()).add(part)
        self._weights = {pair: parts.pop() for pair, parts in owners.items() if len(parts) == 1}

    def part(self, kernel: Kernel) -> str:
        """The part of PARTS, IDLE apart, that a kernel belongs to."""
        for name in kernel.within:
            if name == CLIPPING_RANGE:
                return CLIPPING
            if name.startswith("Optimizer."):
                return OPTIMISER
        if any(_OPERATOR.search(name) for name in kernel.within):
            return OPERATOR
        if _TABLES in kernel.within:
            return ELEMENTWISE
        if kernel.dims is not None:
            return self._product(kernel.dims)
        generated = _GENERATED.match(kernel.name)
        if generated is not None:
            return _fused(generated[1])
        if _OPERATOR.search(kernel.name):
            return OPERATOR
        if "Adam" in kernel.name:
            return OPTIMISER
        if kernel.name == _LOSS_KERNEL:
            return LOSS
        return _eager(kernel.name)

    def _product(self, dims: Sequence[Sequence[int]]) -> str:
        """The part of a product (M, K) (K, N): two of M, K, N are a weight's, one the tokens."""
        (*_, m, k), (*_, n) = dims
        sides = [m, k, n]
        if self.tokens not in sides:
            return UNCLASSIFIED
        sides.remove(self.tokens)
        return self._weights.get(tuple(sorted(sides)), UNCLASSIFIED)


def _fused(operations: str) -> str:
    """The part of a generated kernel, from the names of the operations in it."""

    def has(*names: str) -> bool:
        return any(name in operations for name in names)

    if has("softmax", "nll_loss", "cross_entropy", "logsumexp"):
        return LOSS
    if has("silu"):
        return FFN
    if has("rsqrt", "rms_norm", "mean") or (has("pow") and has("sum")):
        return NORM
    if has("neg", "cos", "sin", "roll"):
        return ELEMENTWISE
    rest, near_operator = _NEAR_OPERATOR.subn("", operations)
    if near_operator and (not rest or _MOVES.match(rest)):
        return OPERATOR
    # A weight is rounded and, where a norm leaves it to its readers, scaled.
    if _MOVES.match(operations) or _SCALED.fullmatch(operations):
        return CASTS
    # What is left of reductions is the gradient of a norm's weight.
    return NORM if has("mul") and has("sum") else ELEMENTWISE


def _eager(name: str) -> str:
    """The part of an operation that was not compiled, on a CPU; no kernel is named so."""
    if not name.startswith("aten::"):
        return UNCLASSIFIED
    operation = name.removeprefix("aten::")
    if operation in ("add", "add_", "mul", "neg", "cat", "slice", "chunk", "split"):
        return ELEMENTWISE
    found = _fused(operation)
    return UNCLASSIFIED if found == ELEMENTWISE else found


_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_ON_HOST = ("cpu_op", "user_annotation")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_WARM_UPDATES = 3
_TIMED_UPDATES = 10
_PROFILED_UPDATES = 3


def _nested(
    events: Iterable[Mapping], categories: Collection[str]
) -> Iterator[tuple[Mapping, list[Mapping], float]]:
    """Each host event of some categories, those that it lies in, outermost first and itself last,
    and its microseconds less those of the events in it."""
    threads: dict[int, list[Mapping]] = {}
    for event in events:
        if event.get("cat") in categories:
            threads.setdefault(event["tid"], []).append(event)
    for members in threads.values():
        open_now: list[Mapping] = []
        placed: list[tuple[Mapping, list[Mapping]]] = []
        own = {id(event): event["dur"] for event in members}
        for event in sorted(members, key=lambda e: (e["ts"], -e["dur"])):
            while open_now and open_now[-1]["ts"] + open_now[-1]["dur"] <= event["ts"]:
                open_now.pop()
            if open_now:
                own[id(open_now[-1])] -= event["dur"]
            open_now.append(event)
            placed.append((event, list(open_now)))
        for event, within in placed:
            yield event, within, own[id(event)]


def _kernel(name: str, microseconds: float, within: Sequence[Mapping]) -> Kernel:
    names = tuple(event["name"] for event in within)
    for event in reversed(within):
        place = factors(event["name"])
        if place is not None and "Input Dims" in event["args"]:
            dims = tuple(tuple(shape) for shape in event["args"]["Input Dims"][place])
            return Kernel(name, microseconds / 1e6, names, dims)
    return Kernel(name, microseconds / 1e6, names)


def device_kernels(events: Sequence[Mapping]) -> list[Kernel]:
    """The kernels, copies and fills of a GPU in a trace, each with what launched it.

    events: `traceEvents` of a trace that torch.profiler exported with shapes.
    """
    ran: dict[int, list[Mapping]] = {}
    for event in events:
        if event.get("cat") in _ON_DEVICE:
            ran.setdefault(event["args"]["correlation"], []).append(event)
    found = []
    for event, within, _ in _nested(events, (*_ON_HOST, *_LAUNCHES)):
        if event["cat"] in _LAUNCHES:
            launched_by = [e for e in within if e["cat"] in _ON_HOST]
            # A driver call inside a runtime call has its number: the kernels go to the first.
            for kernel in ran.pop(event["args"].get("correlation"), ()):
                found.append(_kernel(kernel["name"], kernel["dur"], launched_by))
    unexplained = [kernel for kernels in ran.values() for kernel in kernels]
    return found + [_kernel(kernel["name"], kernel["dur"], ()) for kernel in unexplained]


def host_operations(events: Sequence[Mapping]) -> list[Kernel]:
    """The operations of a CPU in a trace, each less those that it called."""
    return [
        _kernel(event["name"], own, within)
        for event, within, own in _nested(events, _ON_HOST)
        if event["cat"] == "cpu_op"
    ]


def _trace(update: Callable[[], None], device: torch.device) -> tuple[list[Mapping], float]:
    """The events of a trace of _PROFILED_UPDATES updates, and the seconds of one."""
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # acc_events: as in throughput.attention_kernels.
    with profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        began = time.perf_counter()
        for _ in range(_PROFILED_UPDATES):
            update()
        synchronize(device)
        seconds = (time.perf_counter() - began) / _PROFILED_UPDATES
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"], seconds


def summed(kernels: Iterable[Kernel], classifier: Classifier) -> dict[str, tuple[float, int]]:
    """Seconds and number of the kernels of each part."""
    found = dict.fromkeys(PARTS, (0.0, 0))
    for kernel in kernels:
        part = classifier.part(kernel)
        seconds, count = found[part]
        found[part] = seconds + kernel.seconds, count + 1
    return found


def _batches(model: ModelConfig, micro: int, context: int, device: torch.device) -> list:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.vocab_size, (micro, context + 1), generator=generator).to(device)
    return [(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())]


def profile_step(spec: SystemsSpec, side: Mapping, device: torch.device) -> list[dict]:
    """One row a part of one model's update of one micro-batch.

    On a GPU the whole is the median wall time of updates as training runs them, which nothing
    observes. A replayed CUDA graph does not tell what launched a kernel, so the profiled updates
    are without graphs; idle is what their kernels leave of the whole, not below zero. On a CPU
    operations stand for kernels, and as observing slows them, the whole is that of the profiled
    updates.
    """
    model = model_config(side["model"])
    micro, context = side["micro"], side["context"]
    step: UpdateStep = build_step(Setup.of(spec, model, side["backends"], device))
    batches, tokens = _batches(model, micro, context, device), micro * context

    def update(step: UpdateStep) -> None:
        step(batches, tokens, spec.optimizer["learning_rate"])

    for _ in range(_WARM_UPDATES):
        update(step)
    on_gpu = device.type == "cuda"
    walls = []
    for _ in range(_TIMED_UPDATES):
        synchronize(device)
        began = time.perf_counter()
        update(step)
        synchronize(device)
        walls.append(time.perf_counter() - began)
    launched = step.uncaptured()
    # Memory that the graphs hold to themselves is taken anew.
    update(launched)
    events, observed = _trace(lambda: update(launched), device)
    wall = statistics.median(walls) if on_gpu else observed
    kernels = device_kernels(events) if on_gpu else host_operations(events)
    parts = summed(kernels, Classifier(model, tokens))
    busy = sum(seconds for seconds, _ in parts.values()) / _PROFILED_UPDATES
    rows = []
    for part in PARTS:
        seconds, count = parts[part]
        seconds /= _PROFILED_UPDATES
        rows.append(
            {
                "scale": spec.scale,
                "variant": side["variant"],
                "backend": side["backends"][side["variant"]],
                "micro": micro,
                "context": context,
                "precision": spec.precision,
                "part": part,
                "seconds": max(0.0, wall - busy) if part == IDLE else seconds,
                "kernels": count / _PROFILED_UPDATES,
                "wall_seconds": wall,
                "device": describe(device),
            }
        )
    return rows


def run(
    systems: Sequence[SystemsSpec],
    settings: Mapping,
    variants: Sequence[str],
    device_kind: str,
    output: Path,
) -> list[dict]:
    """Profile the matched training step of every scale of a campaign and write the Parquet.

    systems: the campaign's benchmarks; settings: its configuration, which the origin has a hash of;
    variants: of "mha" and "full"; device_kind: "cuda" or "cpu". Raises InputError for another
    variant, for scales without such a step and where there is no GPU.
    """
    for variant in variants:
        if variant not in ("mha", "full"):
            raise InputError(f"unknown variant {variant!r}; choose among mha, full")
    steps = [
        (spec, side)
        for spec in systems
        if spec.benchmark == "matched"
        for side in spec.sides
        if side["side"] in variants
    ]
    if not steps:
        raise InputError(
            f"the campaign has no matched training step of {', '.join(variants)} at these scales; "
            "choose others or add one under systems.matched"
        )
    rows: list[dict] = []
    with claim(device_kind) as device, Progress("profile", len(steps), "steps") as progress:
        for spec, side in steps:
            progress.advance(0, f"{spec.scale} {side['variant']}")
            rows += profile_step(spec, side, device)
            # The next starts from an empty device.
            torch.compiler.reset()
            reclaim()
            progress.advance(1, f"{spec.scale} {side['variant']}")
        hashed = canonical_hash([settings, list(variants)])
        written = origin(systems[0].campaign, hashed, "profile", describe(device))
        write_parquet(output, PROFILE, rows, written)
    return rows
