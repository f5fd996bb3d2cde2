"""Decoding on a GPU: one CUDA graph reads the last ids of a batch and draws the next ids.

`Prepared` holds a decoder's weights in the form that `relation.kernels.decoding` takes. `Replay`
captures one token step as a graph and replays it for every token. The host launches the next step
before it reads the ids of the last one, so host and GPU do not wait for each other.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from relation.errors import InputError
from relation.kernels.available import why_no_decoding
from relation.nn.cache import Cache, DecodeState, HistoryCache
from relation.nn.model import Block, Decoder, RopeTables
from relation.nn.norms import is_patched
from relation.nn.sampling import DRAWS, Sampling, draw, kernel_draws, uniform_numbers
from relation.variants import FULL, LINEAR, MHA

_KNOWN = ("relation.", "torch.nn.")  # modules from other packages may be adapters


class Places(NamedTuple):
    """How far the rows of a batch have read, on the device.

    lengths: (B,) int32, tokens that each row has read. active: (B,) int32, 0 for a row that has
    ended, whose Linear states then do not change. tables: RoPE's, (places, d_h) FP32.
    """

    lengths: Tensor
    active: Tensor
    tables: RopeTables


@functools.cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream on which graphs of a GPU are captured. device: with its index.

    PyTorch's own stream for captures is on the GPU of the process's first graph. A graph of another
    GPU would be empty.
    """
    return torch.cuda.Stream(device)


class BlockWeights:
    """A block's weights, cast, with norms and Givens mixing folded in and projections joined."""

    def __init__(self, letter: str, block: Block, dtype: torch.dtype):
        mixer, ffn, self.letter = block.mixer, block.ffn, letter
        wi = mixer.wi.weight if mixer.theta is None else mixer.mixed(mixer.wi.weight)
        readers = [mixer.w1.weight, mixer.w2.weight, wi]  # (H d_h, d) each, or with fewer heads
        if letter == LINEAR:
            vectors = mixer.a_log.detach().float(), mixer.dt_bias.detach().float()
            self.retention = (mixer.retention_up.detach().to(dtype).contiguous(), *vectors)
            readers.append(mixer.retention_down.weight)
        self.lam, self.transport_self = None, True  # no lambda: MHA
        if letter == FULL:
            self.lam = mixer.arguments(mixer.wo.weight)[0].detach().float().clone()
            self.transport_self = mixer.options["transport_self"]
        self.inward = (torch.cat(readers) * block.mixer_norm.weight).to(dtype)
        self.outward = mixer.wo.weight.to(dtype)
        gate_up = torch.cat([ffn.gate.weight, ffn.up.weight])
        self.gate_up = (gate_up * block.ffn_norm.weight).to(dtype)
        self.down = ffn.down.weight.to(dtype)


def why_plain(model: Decoder, dtype: torch.dtype) -> str | None:
    """Return the reason why `Prepared` cannot decode the model in this dtype, or None if it can."""
    config = model.config
    for part, used in {
        "Raw-X": config.raw_information,
        "Linear Relation of shared heads": LINEAR in config.layout
        and config.shared_heads < config.heads,
        "QK-norm": config.qk_norm,
        "an output gate": config.output_gate,
        "a null logit": config.null_logit,
        "another mixer": set(config.layout) - {MHA, FULL, LINEAR},
        "adapters or hooks": any(
            is_patched(m) or not type(m).__module__.startswith(_KNOWN)
            for m in model.modules()
            if not type(m).__module__.startswith("torch._dynamo.")  # torch.compile's wrapper
        ),
        "quantised weights": any(type(p) is not torch.nn.Parameter for p in model.parameters()),
        "biases": any(getattr(m, "bias", None) is not None for m in model.modules()),
    }.items():
        if used:
            return f"it has {part}, which the kernels do not support"
    return why_no_decoding(model.embedding.weight.device, dtype, config.head_dim)


class Prepared:
    """A decoder's weights for `relation.kernels.decoding`. The model itself reads the prompts.

    dtype: BF16, FP16 or FP32, for the products and the histories. Raises InputError if `why_plain`
    returns a reason.
    """

    @torch.no_grad()
    def __init__(self, model: Decoder, dtype: torch.dtype):
        self.config = model.config
        reason = why_plain(model, dtype)
        if reason:
            raise InputError(f"the decoding kernels cannot run this model: {reason}")
        blocks = zip(self.config.layout, model.blocks, strict=True)
        self.layers = [BlockWeights(letter, block, dtype) for letter, block in blocks]
        self.embedding = model.embedding.weight.detach().float()
        self.outward = (self.embedding * model.norm.weight).to(dtype)
        self.rope_tables = model.rope_tables

    def token(self, ids: Tensor, state: DecodeState, places: Places) -> Tensor:
        """Return logits (B, V), FP32, of the tokens ids, (B,) int64; `state` stores them in place.

        Does not wait for the GPU and does not change lengths on the host. The rows' positions must
        be below the histories' capacity and the tables' length. Weights, states and places exist
        before the first launch, `embed`, so all later launches may be chained.
        """
        # Imported where it is used because it needs Triton.
        from relation.kernels import decoding

        config, project = self.config, functools.partial(decoding.project, chained=True)
        x = decoding.embed(ids.contiguous(), self.embedding, config.embedding_multiplier or 1.0)
        for layer, cache in zip(self.layers, state.layers, strict=True):
            projected = project(x, layer.inward, config.norm_eps)
            y = self._mixed(layer, projected, cache, places)  # (B, d)
            project(y, layer.outward, out=x, then=decoding.ADD)
            hidden = project(x, layer.gate_up, config.norm_eps, then=decoding.GATE)  # (B, d_ff)
            project(hidden, layer.down, out=x, then=decoding.ADD)
        logits = x.new_empty(len(x), config.vocab_size)
        return project(x, self.outward, config.norm_eps, logits)

    def _mixed(
        self, layer: BlockWeights, projected: Tensor, cache: Cache, places: Places
    ) -> Tensor:
        """Return the mixer's y, (B, d), from the projections of one token per row."""
        from relation.kernels import decoding

        config, (lengths, active, tables) = self.config, places
        projected = projected.unflatten(1, (-1, config.head_dim))
        if layer.letter == LINEAR:
            projected = projected.unflatten(1, (4, config.heads))  # (B, 4, H, d_h)
            return decoding.linear_token(
                projected, projected[:, 3], layer.retention, tables, cache.tensors[0], lengths,
                active, config.tau, chained=True,
            )  # fmt: skip
        return decoding.history_token(  # projected: (B, H + 2 shared heads, d_h)
            projected, tables, cache.tensors, lengths, layer.lam, config.tau, layer.transport_self,
            chained=True,
        )  # fmt: skip


class Replay:
    """Decodes token by token: reads `ids`, draws the next ids into it and counts the rows' lengths.

    logits: (B, V), of the prompts' last tokens; the first ids are drawn from them. state: has read
    the prompts. stop: a row that draws this id has ended and reads nothing more. A graph holds one
    capacity: when a state is full, its memory doubles and a new graph is captured. On a CPU (in
    Triton's interpreter) the step runs without a graph.
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
        self._device, rows = logits.device, len(logits)
        self._on_gpu = self._device.type == "cuda"
        # Uniform numbers of DRAWS tokens, (DRAWS, B), and the index that each row used last, (B,).
        self._uniforms = uniform_numbers(sampling.seed, rows)
        self._numbers = torch.empty(DRAWS, rows, dtype=torch.float64, device=self._device)
        self._index = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._temperature = sampling.temperature_on(self._device)
        self._drawn = 0
        self._refill()
        # The rows' lengths and the first ids.
        self.longest = state.length
        lengths = torch.full((rows,), state.length, dtype=torch.int32, device=self._device)
        if state.lengths is not None:
            lengths.copy_(state.lengths)
        self.ids = draw(logits, self._numbers[0], sampling)
        active = torch.ones_like(lengths) if stop is None else (self.ids != stop).to(torch.int32)
        for cache in state.layers:
            cache.tensors = tuple(x.contiguous() for x in cache.tensors)
        self._places = Places(lengths, active, self._room())
        # Two copies of the ids: one is read while the next is written.
        host = functools.partial(torch.empty, rows, dtype=torch.int64, pin_memory=self._on_gpu)
        self._on_host = [host(), host()]
        self._prepare()

    @torch.no_grad()
    def next(self) -> None:
        """Read the ids and draw the next ones. The host does not wait."""
        if self.longest >= self._capacity:
            self._run = None  # frees the graph
            self._places = self._places._replace(tables=self._room())
            self._prepare()
        self._drawn += 1
        if self._drawn % DRAWS == 0:
            self._refill()
        self._run()
        self.longest += 1

    def read_later(self) -> Callable[[], list[int]]:
        """Return a function that waits for the present `ids` and returns them as a list.

        The GPU can then compute the next token meanwhile. At most two results may be pending.
        """
        self._on_host.reverse()
        buffer = self._on_host[0]
        buffer.copy_(self.ids, non_blocking=True)
        if not self._on_gpu:
            return buffer.tolist
        drawn = torch.cuda.Event()
        drawn.record(torch.cuda.current_stream(self._device))

        def read() -> list[int]:
            drawn.synchronize()
            return buffer.tolist()

        return read

    def rewind(self, tokens: int) -> None:
        """Set every row's length to `tokens`, at most the capacity. Benchmarks use it."""
        self._places.lengths.fill_(tokens)
        self.longest = tokens

    def run(self, count: int) -> Iterator[list[int]]:
        """Yield the ids of `count` tokens, B per token. At the end update the state's lengths."""
        try:
            for step in range(1, count + 1):
                read = self.read_later()
                if step < count:
                    self.next()
                yield read()
        finally:
            self._state.set_lengths(self._places.lengths.tolist())

    def _token(self) -> None:
        """The step that a graph holds: read the ids, draw the next ones, count the lengths."""
        lengths, active, _ = self._places
        logits = self._prepared.token(self.ids, self._state, self._places)
        if kernel_draws(logits, self._sampling):
            from relation.kernels import decoding

            decoding.draw(
                logits, self._temperature, self._numbers, self.ids, (self._index, lengths, active),
                self._stop, chained=True,
            )  # fmt: skip
            return
        self._index.add_(1)
        uniforms = self._numbers.index_select(0, self._index[:1] % DRAWS)[0]
        ids = draw(logits, uniforms, self._sampling)
        lengths.add_(active)
        if self._stop is not None:
            ids = ids.masked_fill(active == 0, self._stop)
            active.mul_(ids != self._stop)
        self.ids.copy_(ids)

    def _room(self) -> RopeTables:
        """Allocate memory for `_capacity` > `longest` tokens in every row; return RoPE's tables."""
        capacities = []
        for layer in self._state.layers:
            if isinstance(layer, HistoryCache):
                layer.length = self.longest  # a step counts on the GPU only
                layer.reserve(self.longest + 1)
                capacities.append(layer.capacity)
        # Linear states have no limit. Then the tables double.
        self._capacity = min(capacities, default=1 << self.longest.bit_length())
        return self._prepared.rope_tables(torch.arange(self._capacity, device=self._device))

    def _prepare(self) -> None:
        """Compile the step's kernels and capture it as a graph; a CPU runs it without a graph."""
        if not self._on_gpu:
            self._run = self._token
            return
        counters = [self.ids, self._index, self._places.lengths, self._places.active]
        saved = [x.clone() for x in counters]
        # With all rows inactive, these trial steps write only to places after the rows' ends.
        self._places.active.zero_()
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._token()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            # Other threads may call CUDA during the capture.
            stream = capture_stream(self._device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._token()
        for x, value in zip(counters, saved, strict=True):
            x.copy_(value)
        self._run = graph.replay

    def _refill(self) -> None:
        """Copy the uniform numbers of the next DRAWS tokens to the device."""
        numbers = next(self._uniforms)
        self._numbers.copy_(numbers.pin_memory() if self._on_gpu else numbers, non_blocking=True)
