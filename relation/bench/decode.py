"""Decoding: the time per token and the bytes of the state, by context and batch (Table 1).

A token is timed as in generation: read the last ids, draw the next ids and copy them to the host,
which reads them one token later. The state holds random numbers, which do not affect the time.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from relation.bench.rounds import DTYPES, median_columns, record, synchronize
from relation.jobs import Bench
from relation.nn import Decoder, DecodeState
from relation.nn.replay import Prepared, Replay
from relation.nn.sampling import Sampling, draw, uniform_numbers
from relation.variants import LINEAR, ModelConfig

Call = Callable[[], None]
_TOKENS_A_ROUND = 8
_ROOM = 16  # places after the context, for the tokens of a round


def state_bytes(config: ModelConfig, context: int, batch: int, dtype: torch.dtype) -> int:
    """Return the bytes of the decode state (Table 1's history state) over all layers and rows."""
    history = 2 * context * config.d_model * dtype.itemsize
    linear = config.d_model * config.head_dim * torch.float32.itemsize
    return batch * sum(linear if letter == LINEAR else history for letter in config.layout)


def random_state(
    config: ModelConfig, context: int, batch: int, dtype: torch.dtype, device: torch.device
) -> DecodeState:
    """Return a random decode state of `context` tokens per row, with room for the timed tokens."""
    state = DecodeState(config.layout, context + _ROOM)
    D, rows = config.head_dim, (batch, config.heads)
    for letter, cache in zip(config.layout, state.layers, strict=True):
        if letter == LINEAR:
            cache.tensors = (torch.randn(*rows, D, D, device=device),)  # C
        else:
            shape = (*rows, cache.capacity, D)  # of p2 and info
            cache.tensors = tuple(torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    state.set_lengths([context] * batch)
    return state


def decoding(config: ModelConfig, precision: str, device: torch.device, context: int, batch: int):
    """A workload that measures wall-clock seconds per step, which decodes a token in every row."""
    model = Decoder(config, device=device)
    call, rewind = _token_calls(model, DTYPES[precision], context, batch)
    for _ in range(3):
        call()
    answer = {}
    while (yield answer) is not None:
        rewind()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_TOKENS_A_ROUND):
            call()
        synchronize(device)
        answer = (time.perf_counter() - began) / _TOKENS_A_ROUND


def _token_calls(model: Decoder, dtype: torch.dtype, context: int, batch: int) -> tuple[Call, Call]:
    """Return two functions: one decodes a token, the other goes back to `context` tokens."""
    config, device = model.config, model.embedding.weight.device
    state = random_state(config, context, batch, dtype, device)
    if device.type == "cuda":
        logits = torch.zeros(batch, config.vocab_size, device=device)
        replay = Replay(Prepared(model, dtype), state, logits, Sampling(), None)

        def replayed() -> None:
            read = replay.read_later()
            replay.next()
            read()  # the last token's ids, while the GPU computes the next token

        return replayed, partial(replay.rewind, context)
    numbers = next(uniform_numbers(0, batch))[0]
    ids = torch.zeros(batch, dtype=torch.int64)

    def plain() -> None:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model.decode(ids[:, None], state)[:, -1]
        ids.copy_(draw(logits, numbers, Sampling()))

    return plain, partial(state.set_lengths, [context] * batch)


def measure(bench: Bench, out: Path) -> None:
    """Time a token at every context and batch of the sides; write the record of kind `decode`."""
    models = {side.variant: side.model for side in bench.sides}
    cells = dict.fromkeys((side.context, side.micro) for side in bench.sides)
    workloads = {name: partial(decoding, model, bench.precision) for name, model in models.items()}

    def row(name: str, seconds: list[float], context: int, batch: int) -> dict:
        config, columns = models[name], median_columns("seconds", seconds)
        median = columns["seconds"]
        return {
            "model": name,
            "layout": config.layout,
            "measure": "token",
            "context": context,
            "batch": batch,
            "precision": bench.precision,
            **columns,
            "tokens_per_second": median and batch / median,
            "state_bytes": state_bytes(config, context, batch, DTYPES[bench.precision]),
        }

    record(bench, out, [workloads], cells, row)
