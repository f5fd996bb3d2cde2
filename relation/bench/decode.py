"""Decoding: the time of a token and the bytes of the state, by context and batch (Table 1).

A token is what `relation.nn.generation` runs: read the last ids, draw the next ones, and tell the
host, which reads them a token late. The state holds random numbers: no time depends on them.
Beside it stand the time of reading a prompt (`relation.bench.prompts`) and how far decoding agrees
with the forward pass (`relation.bench.agreement`).
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from relation.bench import llama
from relation.bench.agreement import agreement
from relation.bench.prompts import forward, model_of, reading
from relation.bench.run import choose
from relation.bench.statistics import median_columns
from relation.bench.timing import reclaim, synchronize
from relation.errors import InputError
from relation.machine.devices import claim, describe
from relation.machine.progress import Progress
from relation.nn import Decoder, DecodeState, Execution
from relation.nn.folding import fold
from relation.nn.prepared import Prepared
from relation.nn.replay import Replay
from relation.nn.sampling import Sampling, Uniforms, draw
from relation.spec import SystemsSpec, canonical_hash
from relation.store.layouts import DECODE
from relation.store.parquet import write_parquet
from relation.store.stamp import UNKNOWN, Stamp, origin
from relation.variants import LINEAR, ModelConfig, model_config
from relation.verify.inputs import DTYPES

# Tokens of a prompt, and rows.
PROMPTS = {"cuda": (8192, (1, 8)), "cpu": (64, (1,))}
PEER = "llama"
NAME = "decode"
TOKEN, PROMPT, FORWARD, AGREEMENT = "token", "prompt", "forward", "agreement"
# What `bench decode` measures; a prompt's rows are those of reading it and of training's forward.
MEASURES = (TOKEN, PROMPT, AGREEMENT)
# Compiling the peer takes as long as measuring a model's whole row.
_PEERS_CONTEXTS, _PEERS_BATCHES = (512, 131072), (1, 32)
_ROUNDS, _TOKENS_A_ROUND, _WARM_TOKENS = 10, 8, 4
# Places beyond the context, for the tokens of a round.
ROOM = 16


class Decoding(NamedTuple):
    """What is timed: `token` runs a token of the batch, `rewind` goes back to the context."""

    token: Callable[[], object]
    rewind: Callable[[], object] = lambda: None


Maker = Callable[["Cell"], Decoding]


@dataclass(frozen=True)
class Cell:
    """What is measured once: a token of `batch` rows that have read `context` tokens each.

    measure: TOKEN, or PROMPT and FORWARD, of which `context` tokens a row are timed.
    """

    model: str
    config: ModelConfig
    context: int
    batch: int
    measure: str = TOKEN

    @property
    def tokens(self) -> int:
        """Tokens that a call takes."""
        return self.batch * (1 if self.measure == TOKEN else self.context)

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the decode state: Table 1's history state, of all layers and rows."""
        config = self.config
        history = 2 * self.context * config.d_model * dtype.itemsize
        linear = config.d_model * config.head_dim * torch.float32.itemsize
        of_layer = {letter: linear if letter == LINEAR else history for letter in config.layout}
        return self.batch * sum(of_layer[letter] for letter in config.layout)


def random_state(cell: Cell, dtype: torch.dtype, device: torch.device) -> DecodeState:
    """A decode state as `cell` finds it, with room for the tokens that are measured."""
    config, rows = cell.config, (cell.batch, cell.config.heads)
    state = DecodeState(config.layout, cell.context + ROOM)
    for letter, cache in zip(config.layout, state.layers, strict=True):
        if letter == LINEAR:
            C = torch.randn(*rows, config.head_dim, config.head_dim, device=device)
            cache.tensors = (C,)
        else:
            shape = (*rows, cache.capacity, config.head_dim)
            cache.tensors = tuple(torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    state.settle([cell.context] * cell.batch)
    return state


def _replayed(model: Decoder, cell: Cell, dtype: torch.dtype, device: torch.device) -> Decoding:
    """Tokens by the kernels, as generation runs them: the last one is read meanwhile."""
    state = random_state(cell, dtype, device)
    logits = torch.zeros(cell.batch, cell.config.vocab_size, device=device)
    prepared = Prepared(model, dtype)
    replay = Replay(prepared, state, logits, Sampling(), None)

    def token() -> None:
        note = replay.note()
        replay.next()
        note.read()

    return Decoding(token, partial(replay.rewind, cell.context))


def _plain(model: Decoder, cell: Cell, dtype: torch.dtype, device: torch.device) -> Decoding:
    """Tokens by `model.decode`, as a CPU generates."""
    state = random_state(cell, dtype, device)
    numbers = Uniforms(0, cell.batch).next()[0]
    ids = torch.zeros(cell.batch, dtype=torch.int64)

    def token() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model.decode(ids[:, None], state)[:, -1]
        ids.copy_(draw(logits, numbers, Sampling()))

    return Decoding(token, partial(state.settle, [cell.context] * cell.batch))


def _peer(cell: Cell, dtype: torch.dtype, device: torch.device) -> Decoding:
    places = cell.context + ROOM
    return Decoding(*llama.tokens(cell.config, cell.batch, cell.context, places, dtype, device))


def _maker(name: str, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Maker:
    """What makes the token of a cell of one model, which is built once."""
    if name == PEER:
        return partial(_peer, dtype=dtype, device=device)
    make = _replayed if device.type == "cuda" else _plain
    model = fold(model_of(config, Execution(linear="chunked"), device).eval())
    return partial(make, model, dtype=dtype, device=device)


def _of_prompts(cell: Cell, dtype: torch.dtype, device: torch.device) -> Decoding:
    """A prompt read, or training's forward of as many tokens."""
    make = reading if cell.measure == PROMPT else forward
    return Decoding(make(cell.config, cell.context, cell.batch, dtype, device))


def why_unmeasured(cell: Cell, dtype: torch.dtype, device: torch.device) -> str | None:
    """The reason why a cell is not measured on `device`, or None; memory is not asked about."""
    if cell.model != PEER:
        return None
    reason = llama.why_unavailable(device)
    if reason is None and (cell.context not in _PEERS_CONTEXTS or cell.batch not in _PEERS_BATCHES):
        reason = "compiled at few contexts and batches alone: each takes many seconds"
    return reason


def _seconds(decoding: Decoding, rounds: int, device: torch.device) -> list[float]:
    """Seconds of one token, the mean of each round, by the clock on the wall."""
    for _ in range(_WARM_TOKENS):
        decoding.token()
    found = []
    for _ in range(rounds):
        decoding.rewind()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_TOKENS_A_ROUND):
            decoding.token()
        synchronize(device)
        found.append((time.perf_counter() - began) / _TOKENS_A_ROUND)
    return found


def measured(
    cell: Cell, make: Maker, precision: str, device: torch.device, rounds: int = _ROUNDS
) -> dict:
    """The row of a cell: its times, or why it has none with the bytes that it would take."""
    dtype, samples = DTYPES[precision], []
    needed = cell.state_bytes(dtype)
    status, reason = "UNAVAILABLE", why_unmeasured(cell, dtype, device)
    if reason is None and device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        if needed > free:
            status = "OOM"
            reason = f"its state takes {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free"
    if reason is None:
        try:
            samples = _seconds(make(cell), rounds, device)
            status = "PASS"
        except torch.OutOfMemoryError as error:
            status, reason = "OOM", str(error).splitlines()[0]
    median = median_columns("seconds", samples)
    seconds = median["seconds"]
    return _row(cell.model, cell.config, cell.measure, precision, device) | {
        "context": cell.context,
        "batch": cell.batch,
        "status": status,
        "reason": reason,
        **median,
        "tokens_per_second": None if seconds is None else cell.tokens / seconds,
        "state_bytes": None if cell.measure == FORWARD else needed,
        "samples": samples,
    }


def _row(
    model: str, config: ModelConfig, measure: str, precision: str, device: torch.device
) -> dict:
    """What every row has; the other columns are null."""
    own = {"model": model, "layout": config.layout, "measure": measure, "precision": precision}
    return dict.fromkeys(DECODE.names) | own | {"samples": [], "device": describe(device)}


def _rows_of(
    name: str,
    config: ModelConfig,
    grid: Sequence[Sequence[int]],
    measures: Sequence[str],
    rounds: int,
    precision: str,
    device: torch.device,
    tell: Callable[[str], None],
) -> Iterator[dict]:
    """One model's rows. tell: what the next one is."""
    dtype, given = DTYPES[precision], (precision, device, rounds)
    if TOKEN in measures:
        make = _maker(name, config, dtype, device)
        for context, batch in itertools.product(*grid):
            tell(f"{name} {context:,} x {batch}")
            yield measured(Cell(name, config, context, batch), make, *given)
    if name == PEER:
        return
    if PROMPT in measures:
        make = partial(_of_prompts, dtype=dtype, device=device)
        context, batches = PROMPTS[device.type]
        for batch, measure in itertools.product(batches, (PROMPT, FORWARD)):
            tell(f"{name} {measure} {context:,} x {batch}")
            yield measured(Cell(name, config, context, batch, measure), make, *given)
    if AGREEMENT in measures:
        tell(f"{name} {AGREEMENT}")
        found = _row(name, config, AGREEMENT, precision, device)
        try:
            yield found | agreement(config, precision, device)
        except torch.OutOfMemoryError as error:
            yield found | {"status": "OOM", "reason": str(error).splitlines()[0]}


def _record(
    models: Mapping[str, ModelConfig],
    grid: Sequence[Sequence[int]],
    measures: Sequence[str],
    rounds: int,
    precision: str,
    device_kind: str,
    output: Path,
    *stamped: str,
    stamp: Stamp,
) -> list[dict]:
    """Measure models and write the Parquet anew after each, so that none is lost.

    grid: contexts and batches of the tokens; stamped: campaign, hash and stage of the origin.
    """
    rows: list[dict] = []
    with claim(device_kind) as device, Progress(NAME, len(models), "models") as progress:
        written = origin(*stamped, describe(device), stamp)
        for name, config in models.items():
            given = grid, measures, rounds, precision, device
            for row in _rows_of(name, config, *given, partial(progress.advance, 0)):
                rows.append(row)
                reclaim()
            write_parquet(output, DECODE, rows, written)
            progress.advance(1, name)
    return rows


def models_of(spec: SystemsSpec) -> dict[str, ModelConfig]:
    """The models of a campaign's benchmark, by variant."""
    return {side["variant"]: model_config(side["model"]) for side in spec.sides}


def _grid_of(spec: SystemsSpec) -> list[list[int]]:
    """Contexts and batches of a campaign's benchmark."""
    return [list(dict.fromkeys(side[name] for side in spec.sides)) for name in ("context", "micro")]


def measure(spec: SystemsSpec, output: Path, stamp: Stamp = UNKNOWN) -> list[dict]:
    """A campaign's benchmark `decode`: the tokens of its sides; writes their Parquet.

    Raises InputError where there is no such device.
    """
    given = models_of(spec), _grid_of(spec), [TOKEN], spec.rounds, spec.precision, spec.device
    return _record(*given, output, spec.campaign, spec.config_hash, NAME, stamp=stamp)


def run(
    spec: SystemsSpec,
    settings: Mapping,
    device_kind: str,
    output: Path,
    only: Sequence[str] | None = None,
    contexts: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    measures: Sequence[str] | None = None,
    stamp: Stamp = UNKNOWN,
) -> list[dict]:
    """Measure how each model of a campaign's benchmark decodes, and write the Parquet.

    The peer in transformers takes MHA's shape. settings: the campaign's, which the origin has a
    hash of; only: names of models and of the peer, None for all; contexts, batches: of the tokens,
    the benchmark's by default; measures: of MEASURES, None for all. Raises InputError for an
    unknown model or measure, a context or batch below 1 and where there is no GPU.
    """
    named = models_of(spec)
    named |= {PEER: named["mha"]}
    chosen, asked = choose("model", only, named), choose("measure", measures, MEASURES)
    grid = [
        list(given or known)
        for given, known in zip((contexts, batches), _grid_of(spec), strict=True)
    ]
    for what, values in zip(("context", "batch"), grid, strict=True):
        if min(values) < 1:
            raise InputError(f"a {what} is {min(values)}; give at least 1")
    hashed = canonical_hash([settings, chosen, *grid, asked])
    given = {name: named[name] for name in chosen}, grid, asked, _ROUNDS, spec.precision
    return _record(*given, device_kind, output, spec.campaign, hashed, NAME, stamp=stamp)
