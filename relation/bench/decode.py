"""Decoding: the time of a token and the bytes of the state, by context and batch (Table 1).

A token is what generation runs: read the last ids, draw the next ones and tell the host, which
reads them a token late. The state holds random numbers, on which no time depends. Beside it stands
the time of a prompt.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass
class Decoding:
    """One model: its tokens or a prompt, as `prepare` is asked."""

    config: ModelConfig
    precision: str
    device: torch.device

    def prepare(self, measure: str, context: int, batch: int) -> dict:
        """Raises OutOfMemoryError where the state alone is larger than the free memory."""
        config, dtype, device = self.config, DTYPES[self.precision], self.device
        if device.type == "cuda":
            torch.cuda.set_device(device)
            free, needed = torch.cuda.mem_get_info()[0], state_bytes(config, context, batch, dtype)
            if measure == TOKEN and needed > free:
                told = f"its state takes {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free"
                raise torch.OutOfMemoryError(told)
        model = Decoder(config, seed=0).to(device).eval()
        if measure == TOKEN:
            self._calls, prepare = _TOKENS_A_ROUND, self._prepare_token
        else:
            self._calls, prepare = 1, self._prepare_prompt
        self._call, self._rewind = prepare(model, dtype, context, batch)
        for _ in range(3):
            self._call()
        return {}

    def _prepare_token(
        self, model: Decoder, dtype: torch.dtype, context: int, batch: int
    ) -> tuple[Call, Call]:
        """What reads and draws a token, and what goes back to `context` tokens."""
        state = random_state(self.config, context, batch, dtype, self.device)
        if self.device.type == "cuda":
            logits = torch.zeros(batch, self.config.vocab_size, device=self.device)
            replay = Replay(Prepared(model, dtype), state, logits, Sampling(), None)

            def replayed() -> None:
                ids = replay.note()
                replay.next()
                ids()  # the last token's, while the GPU works on the next

            return replayed, partial(replay.rewind, context)
        numbers = next(uniform_numbers(0, batch))[0]
        ids = torch.zeros(batch, dtype=torch.int64)

        def plain() -> None:
            with self._autocast(dtype):
                logits = model.decode(ids[:, None], state)[:, -1]
            ids.copy_(draw(logits, numbers, Sampling()))

        return plain, partial(state.settle, [context] * batch)

    def _prepare_prompt(
        self, model: Decoder, dtype: torch.dtype, context: int, batch: int
    ) -> tuple[Call, Call]:
        """What reads a prompt of `context` tokens a row into a new state; logits of the last."""
        drawn = torch.Generator().manual_seed(0)
        tokens = torch.randint(self.config.vocab_size, (batch, context), generator=drawn)
        tokens = tokens.to(self.device)

        def read() -> None:
            with self._autocast(dtype):
                model.read(tokens, model.decode_state(context))

        return read, lambda: None

    def _autocast(self, dtype: torch.dtype) -> torch.autocast:
        return torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32)

    def seconds(self, measure: str) -> float:
        """Seconds of a token or a prompt of the batch, by the clock on the wall."""
        self._rewind()
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(self._calls):
            self._call()
        synchronize(self.device)
        return (time.perf_counter() - began) / self._calls


def measure(bench: Bench, out: Path, data: Path | None = None) -> None:
    """Time tokens at every context and batch of the sides, and a prompt; write `decode`.

    data: not read. Raises InputError where the device is missing.
    """
    models = {side.variant: side.model for side in bench.sides}
    cells = list(dict.fromkeys((TOKEN, side.context, side.micro) for side in bench.sides))
    prompt, batches = _PROMPTS[bench.device]
    cells += [(PROMPT, prompt, batch) for batch in batches]

    def sides_of(device: torch.device) -> list[dict[str, Decoding]]:
        return [{k: Decoding(model, bench.precision, device) for k, model in models.items()}]

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
