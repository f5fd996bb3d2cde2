"""Decoding: the time of a token and the bytes of the state, by context and batch (Table 1).

A token is what generation runs: read the last ids, draw the next ones and tell the host, which
reads them a token late. The state holds random numbers, on which no time depends. Beside it stand
the time of a prompt, and how far decoding a given text lies off the forward pass in FP64.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from relation import machine, records
from relation.bench.rounds import (
    DTYPES,
    Answers,
    Conditions,
    Sides,
    claimed,
    median_columns,
    synchronize,
)
from relation.errors import RunError
from relation.jobs import Bench
from relation.nn import Decoder, DecodeState, Execution
from relation.nn.generate import (
    Places,
    Prepared,
    Replay,
    Sampling,
    Uniforms,
    draw,
    why_plain,
)
from relation.variants import LINEAR, ModelConfig

TOKEN, PROMPT, AGREEMENT = "token", "prompt", "agreement"
_TOKENS_A_ROUND = 8
_ROOM = 16  # places beyond the context, for the tokens of a round
# By kind of device: tokens of a prompt and its batches; rows, prompt and tokens of an agreement.
_PROMPTS = {"cuda": (8192, (1, 8)), "cpu": (64, (1,))}
_AGREEMENTS = {"cuda": (8, 512, 128), "cpu": (2, 12, 8)}
# Decoding may lie off FP64 by twice what the forward pass does, and by so much of the truth.
_SLACK = {"fp32": 1e-5, "bf16": 1e-3, "fp16": 1e-3}


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
    """One model: its tokens, its prompts and its agreement with FP64, as `prepare` is asked."""

    config: ModelConfig
    precision: str
    device: torch.device

    @property
    def _dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    def _autocast(self) -> torch.autocast:
        enabled = self._dtype != torch.float32
        return torch.autocast(self.device.type, self._dtype, enabled=enabled)

    def _model(self) -> Decoder:
        return Decoder(self.config, seed=0).to(self.device).eval()

    def _ids(self, batch: int, length: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randint(self.config.vocab_size, (batch, length), generator=generator)
        return drawn.to(self.device)

    def prepare(self, measure: str, context: int, batch: int) -> dict:
        """Raises OutOfMemoryError where the state alone is larger than the free memory."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if measure == AGREEMENT:
            return self._agreement()
        self._rewind, self._calls = (lambda: None), 1
        if measure == TOKEN:
            self._prepare_token(context, batch)
        else:
            self._prepare_prompt(context, batch)
        for _ in range(3):
            self._call()
        return {}

    def _prepare_token(self, context: int, batch: int) -> None:
        config, dtype, device = self.config, self._dtype, self.device
        if device.type == "cuda":
            free, needed = torch.cuda.mem_get_info()[0], state_bytes(config, context, batch, dtype)
            if needed > free:
                told = f"its state takes {needed / 1e9:,.0f} GB, and {free / 1e9:,.0f} GB are free"
                raise torch.OutOfMemoryError(told)
        model = self._model()
        state = random_state(config, context, batch, dtype, device)
        self._calls = _TOKENS_A_ROUND
        if device.type == "cuda":
            logits = torch.zeros(batch, config.vocab_size, device=device)
            replay = Replay(Prepared(model, dtype), state, logits, Sampling(), None)

            def replayed() -> None:
                note = replay.note()
                replay.next()
                note.read()  # the last token's ids, while the GPU works on the next

            self._call, self._rewind = replayed, partial(replay.rewind, context)
            return
        numbers = Uniforms(0, batch).next()[0]
        ids = torch.zeros(batch, dtype=torch.int64)

        def plain() -> None:
            with torch.no_grad(), self._autocast():
                logits = model.decode(ids[:, None], state)[:, -1]
            ids.copy_(draw(logits, numbers, Sampling()))

        self._call, self._rewind = plain, partial(state.settle, [context] * batch)

    def _prepare_prompt(self, context: int, batch: int) -> None:
        """Reads a prompt of `context` tokens a row into a new state; logits of the last."""
        model, tokens = self._model(), self._ids(batch, context)

        def read() -> None:
            with torch.no_grad(), self._autocast():
                model.read(tokens, model.decode_state(context))

        self._call = read

    def _next_token(self, model: Decoder, prompts: Tensor, places: int) -> Callable:
        """What gives logits (B, V) of ids (B,) after prompts (B, n), as generation does."""
        state = model.decode_state(places)
        model.read(prompts, state)
        if why_plain(model, self.device, self._dtype) is not None:
            return lambda ids: model.decode(ids[:, None], state)[:, -1]
        prepared, shape = Prepared(model, self._dtype), (len(prompts),)
        lengths = torch.full(shape, state.length, dtype=torch.int32, device=self.device)
        at = Places(lengths, torch.ones_like(lengths), model.rope_tables(places, self.device))

        def token(ids: Tensor) -> Tensor:
            logits = prepared.token(ids, state, at)
            lengths.add_(1)
            return logits

        return token

    @torch.no_grad()
    def _agreement(self) -> dict:
        """Decodes a given text; its logits off FP64's, beside those of the forward pass.

        Teacher-forced: a token that differs changes none after it. Raises RunError where decoding
        is beyond its bound.
        """
        batch, read, decoded = _AGREEMENTS[self.device.type]
        model = self._model()
        tokens = self._ids(batch, read + decoded)
        exact = Decoder(self.config, Execution(full="tiled", linear="chunked"), seed=None)
        exact.to(self.device).double().load_state_dict(model.state_dict())
        truth = exact(tokens)[:, read:]
        with self._autocast():
            forward = model(tokens)[:, read:].double()
            token = self._next_token(model, tokens[:, :read], read + decoded)
            steps = [token(ids) for ids in tokens[:, read:].unbind(1)]
        found = torch.stack(steps, 1).double()
        rms, largest = (lambda x: x.square().mean().sqrt().item()), (lambda x: x.abs().max().item())
        for name, size in (("RMS", rms), ("largest", largest)):
            error, usual = size(found - truth), size(forward - truth)
            if not error <= 2 * usual + _SLACK[self.precision] * size(truth):
                raise RunError(f"its {name} error is {error:.2g}, the forward's {usual:.2g}")
        chosen, usual, right = (logits.argmax(-1) for logits in (found, forward, truth))
        return {
            "compared_tokens": batch * decoded,
            "logit_error": rms(found - truth) / rms(truth),
            "forward_error": rms(forward - truth) / rms(truth),
            "greedy_differs": (chosen != usual).sum().item(),
            "forward_differs": (usual != right).sum().item(),
        }

    def seconds(self, measure: str) -> float:
        """Seconds of a token, a prompt or a forward of the batch, by the clock on the wall."""
        self._rewind()
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(self._calls):
            self._call()
        synchronize(self.device)
        return (time.perf_counter() - began) / self._calls

    def proof(self) -> dict:
        return {}

    def release(self) -> None:
        self._call = self._rewind = None


def _row(
    bench: Bench, model: str, config: ModelConfig, cell: tuple[str, int, int], answers: Answers
) -> dict:
    measure, context, batch = cell
    columns = median_columns("seconds", answers.samples.get(measure, []))
    tokens, seconds = batch * (1 if measure == TOKEN else context), columns["seconds"]
    bytes_of = state_bytes(config, context, batch, DTYPES[bench.precision])
    return {
        **dict.fromkeys(records.columns("decode")),
        **{name: getattr(bench, name) for name in ("campaign", "scale", "variation", "precision")},
        "model": model,
        "layout": config.layout,
        "measure": measure,
        "context": context,
        "batch": batch,
        **answers.status(measure),
        **columns,
        "tokens_per_second": None if seconds is None else tokens / seconds,
        "state_bytes": bytes_of if measure != AGREEMENT else None,
        "samples": answers.samples.get(measure, []),
        **answers.facts,
    }


def measure(bench: Bench, out: Path, data: Path | None = None) -> None:
    """Measure how the models of a campaign decode and write the record of kind `decode`.

    Tokens at every context and batch of the sides, a prompt beside the forward pass, agreement.
    data: not read. Raises InputError where the device is missing.
    """
    models = {side.variant: side.model for side in bench.sides}
    kind = bench.device
    prompt, batches = _PROMPTS[kind]
    cells = list(dict.fromkeys((TOKEN, side.context, side.micro) for side in bench.sides))
    cells += [(PROMPT, prompt, batch) for batch in batches]
    rows: list[dict] = []
    with claimed(kind) as device:
        decoders = {
            name: Decoding(model, bench.precision, device) for name, model in models.items()
        }
        with Sides(decoders, Conditions(device)) as processes:
            for cell in cells:
                found = processes.compare(cell, cell[:1], bench.rounds)
                rows += [_row(bench, name, models[name], cell, found[name]) for name in models]
            rows_read, read, _ = _AGREEMENTS[kind]
            cell = (AGREEMENT, read, rows_read)
            found = processes.compare(cell, [AGREEMENT], rounds=0, warm_rounds=0)
            rows += [_row(bench, name, models[name], cell, found[name]) for name in models]
        origin = records.origin(bench.hash, machine.describe(device))
    records.write(out, "decode", rows, origin)
