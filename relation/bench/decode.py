"""Decoding: the time of a token and the bytes of the state, by context and batch (Table 1).

A token is what generation runs: read the last ids, draw the next ones and tell the host, which
reads them a token late. The state holds random numbers, on which no time depends. Beside it stands
the time of a prompt.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from relation.bench.rounds import DTYPES, Answers, median_columns, record, synchronize
from relation.jobs import Bench
from relation.nn import Decoder, DecodeState
from relation.nn.generate import Prepared, Replay, Sampling, draw, uniform_numbers
from relation.variants import LINEAR, ModelConfig

TOKEN, PROMPT = "token", "prompt"
Call = Callable[[], None]
_TOKENS_A_ROUND = 8
_ROOM = 16  # places beyond the context, for the tokens of a round
# By kind of device: tokens of a prompt and its batches.
_PROMPTS = {"cuda": (8192, (1, 8)), "cpu": (64, (1,))}


def state_bytes(config: ModelConfig, context: int, batch: int, dtype: torch.dtype) -> int:
    """Bytes of the decode state, Table 1's history state of all layers and rows."""
    history = 2 * context * config.d_model * dtype.itemsize
    linear = config.d_model * config.head_dim * torch.float32.itemsize
    return batch * sum(linear if letter == LINEAR else history for letter in config.layout)


def random_state(
    config: ModelConfig, context: int, batch: int, dtype: torch.dtype, device: torch.device
) -> DecodeState:
    """A decode state after `context` tokens a row, with room for those that are measured."""
    state = DecodeState(config.layout, context + _ROOM)
    D, rows = config.head_dim, (batch, config.heads)
    for letter, cache in zip(config.layout, state.layers, strict=True):
        if letter == LINEAR:
            cache.tensors = (torch.randn(*rows, D, D, device=device),)  # C
        else:
            shape = (*rows, cache.capacity, D)  # of p2 and info
            cache.tensors = tuple(torch.randn(shape, dtype=dtype, device=device) for _ in range(2))
    state.settle([context] * batch)
    return state


def decoding(
    config: ModelConfig,
    precision: str,
    device: torch.device,
    measure: str,
    context: int,
    batch: int,
):
    """A side: seconds of a token or a prompt of the batch, by the clock on the wall."""
    dtype = DTYPES[precision]
    model = Decoder(config, seed=0).to(device).eval()
    calls, prepare = (_TOKENS_A_ROUND, _token) if measure == TOKEN else (1, _prompt)
    cast = partial(torch.autocast, device.type, dtype, enabled=dtype != torch.float32)
    call, rewind = prepare(model, dtype, cast, context, batch)
    for _ in range(3):
        call()
    answer = {}
    while (yield answer) is not None:
        rewind()
        synchronize(device)
        began = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        answer = (time.perf_counter() - began) / calls


def _token(
    model: Decoder, dtype: torch.dtype, cast: Callable, context: int, batch: int
) -> tuple[Call, Call]:
    """What reads and draws a token, and what goes back to `context` tokens."""
    config, device = model.config, model.embedding.weight.device
    state = random_state(config, context, batch, dtype, device)
    if device.type == "cuda":
        logits = torch.zeros(batch, config.vocab_size, device=device)
        replay = Replay(Prepared(model, dtype), state, logits, Sampling(), None)

        def replayed() -> None:
            ids = replay.note()
            replay.next()
            ids()  # the last token's, while the GPU works on the next

        return replayed, partial(replay.rewind, context)
    numbers = next(uniform_numbers(0, batch))[0]
    ids = torch.zeros(batch, dtype=torch.int64)

    def plain() -> None:
        with cast():
            logits = model.decode(ids[:, None], state)[:, -1]
        ids.copy_(draw(logits, numbers, Sampling()))

    return plain, partial(state.settle, [context] * batch)


def _prompt(
    model: Decoder, dtype: torch.dtype, cast: Callable, context: int, batch: int
) -> tuple[Call, Call]:
    """What reads a prompt of `context` tokens a row into a new state; logits of the last."""
    drawn = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (batch, context), generator=drawn)
    tokens = tokens.to(model.embedding.weight.device)

    def read() -> None:
        with cast():
            model.read(tokens, model.decode_state(context))

    return read, lambda: None


def measure(bench: Bench, out: Path) -> None:
    """Time tokens at every context and batch of the sides, and a prompt; write `decode`."""
    models = {side.variant: side.model for side in bench.sides}
    cells = list(dict.fromkeys((TOKEN, side.context, side.micro) for side in bench.sides))
    prompt, batches = _PROMPTS[bench.device]
    cells += [(PROMPT, prompt, batch) for batch in batches]

    def sides_of(device: torch.device) -> list[dict[str, partial]]:
        return [{k: partial(decoding, m, bench.precision, device) for k, m in models.items()}]

    def row(name: str, measure: str, given: tuple, answers: Answers) -> dict:
        config, (_, context, batch) = models[name], given
        seconds = median_columns("seconds", answers.samples.get(measure, []))
        tokens, median = batch * (1 if measure == TOKEN else context), seconds["seconds"]
        return {
            "model": name,
            "layout": config.layout,
            "measure": measure,
            "context": context,
            "batch": batch,
            "precision": bench.precision,
            **seconds,
            "tokens_per_second": median and tokens / median,
            "state_bytes": state_bytes(config, context, batch, DTYPES[bench.precision]),
        }

    record(bench, out, "decode", sides_of, [(cell[0], cell) for cell in cells], row)
