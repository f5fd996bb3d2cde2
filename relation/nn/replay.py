"""Tokens of a batch drawn on the GPU, each one replayed from a CUDA graph.

The host launches a token before it reads the one before, so that neither waits for the other. What
follows is seen a token late: an end of text, or logits that are not finite. A row that has ended
reads nothing more: its state is that before the stop token.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from relation.kernels import decoding
from relation.nn.cache import DecodeState
from relation.nn.prepared import Places, Prepared
from relation.nn.sampling import (
    CHUNK,
    Sampling,
    Uniforms,
    draw,
    drawn_by_kernel,
    temperature_on,
)

_WARM_TOKENS = 2


class Replay:
    """One token after another: reads `ids`, draws the next into it, counts where rows stand.

    logits: (B, V) of the prompts' last tokens, from which the first ids are drawn; state: what
    has read the prompts; stop: a row that draws it has ended. A graph is of one capacity: where a
    state is full, its memory doubles and the token is captured anew. On a CPU, in Triton's
    interpreter, the token is run as it is.
    """

    def __init__(
        self,
        prepared: Prepared,
        state: DecodeState,
        logits: Tensor,
        sampling: Sampling,
        stop: int | None,
    ):
        self._prepared, self._state, self._sampling, self._stop = prepared, state, sampling, stop
        self._device = logits.device
        self._on_gpu = self._device.type == "cuda"
        rows = len(logits)
        self._uniforms = Uniforms(sampling.seed, rows)
        self._numbers = torch.empty(CHUNK, rows, dtype=torch.float64, device=self._device)
        self._place = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._temperature = temperature_on(self._device, sampling)
        self._drawn = 0
        self._refill()
        self.longest = state.length
        counts = dict(dtype=torch.int32, device=self._device)
        lengths = torch.full((rows,), state.length, **counts)
        if state.lengths is not None:
            lengths.copy_(state.lengths)
        self.ids = draw(logits, self._numbers[0], sampling)
        ended = self.ids == stop if stop is not None else torch.zeros_like(self.ids)
        active = (ended == 0).to(torch.int32)
        for cache in state.layers:
            cache.tensors = tuple(x.contiguous() for x in cache.tensors)
        self._places = Places(lengths, active, self._room())
        self._notes = [self._note_buffer() for _ in range(2)]
        self._prepare()

    @torch.no_grad()
    def next(self) -> None:
        """Read the ids and draw the next ones; the host goes on at once."""
        if self.longest >= self._capacity:
            self._run = None
            self._places = self._places._replace(tables=self._room())
            self._prepare()
        self._drawn += 1
        if self._drawn % CHUNK == 0:
            self._refill()
        self._run()
        self.longest += 1

    def note(self) -> "Note":
        """The ids as they are at this point of the GPU's work, to be read later.

        At most two notes are open at a time.
        """
        self._notes.reverse()
        buffer = self._notes[0]
        buffer.copy_(self.ids, non_blocking=True)
        return Note(buffer, self._device)

    def rewind(self, tokens: int) -> None:
        """Let every row have read so many tokens, no more than it has room for: to time one."""
        self._places.lengths.fill_(tokens)
        self.longest = tokens

    def settle(self) -> None:
        """Wait for the GPU, and tell the state how far each row has read."""
        self._state.settle(self._places.lengths.tolist())

    def _token(self) -> None:
        """What one graph holds."""
        lengths, active, _ = self._places
        logits = self._prepared.token(self.ids, self._state, self._places)
        if drawn_by_kernel(logits, self._sampling):
            counts = self._place, lengths, active
            given = logits, self._temperature, self._numbers, self.ids, counts, self._stop
            decoding.draw(*given, chained=True)
            return
        self._place.add_(1)
        uniforms = self._numbers.index_select(0, self._place[:1] % CHUNK)[0]
        ids = draw(logits, uniforms, self._sampling)
        lengths.add_(active)
        if self._stop is not None:
            ids = ids.masked_fill(active == 0, self._stop)
            active.mul_(ids != self._stop)
        self.ids.copy_(ids)

    def _room(self) -> tuple[Tensor, Tensor]:
        """Take memory for another token, a full history's twice over; returns RoPE's tables."""
        for history in self._state.histories:
            history.length = self.longest
            history.reserve(self.longest + 1)
        capacities = [history.capacity for history in self._state.histories]
        build = partial(self._prepared.rope_tables, device=self._device)
        tables = self._state.tables(build, max([self.longest + 1, *capacities]))
        self._capacity = min([len(tables[0]), *capacities])
        return tables

    def _prepare(self) -> None:
        """Compile the token's kernels and capture it; on a CPU it is run as it is."""
        if not self._on_gpu:
            self._run = self._token
            return
        kept = [x.clone() for x in self._counted()]
        # Rows that have ended read nothing: only places past their ends are written.
        self._places.active.zero_()
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(_WARM_TOKENS):
                    self._token()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._token()
        for x, value in zip(self._counted(), kept, strict=True):
            x.copy_(value)
        self._run = graph.replay

    def _counted(self) -> list[Tensor]:
        """What a token changes besides the layers' states."""
        return [self.ids, self._place, self._places.lengths, self._places.active]

    def _refill(self) -> None:
        """Send the uniform numbers of the next CHUNK tokens."""
        numbers = self._uniforms.next()
        self._numbers.copy_(numbers.pin_memory() if self._on_gpu else numbers, non_blocking=True)

    def _note_buffer(self) -> Tensor:
        return torch.empty(len(self.ids), dtype=torch.int64, pin_memory=self._on_gpu)


class Note:
    """Ids on their way to the host."""

    def __init__(self, buffer: Tensor, device: torch.device):
        self._buffer, self._event = buffer, None
        if device.type == "cuda":
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def read(self) -> list[int]:
        """The ids, as soon as the GPU has drawn them."""
        if self._event is not None:
            self._event.synchronize()
        return self._buffer.tolist()


def replayed(replay: Replay, count: int) -> Iterator[list[int]]:
    """Yield the ids of `count` tokens, (B,) each, a token after the GPU drew them."""
    try:
        for drawn in range(1, count + 1):
            note = replay.note()
            if drawn < count:
                replay.next()
            yield note.read()
    finally:
        replay.settle()
