"""Generation: continuing prompts token by token from a model's decode state.

On a GPU a token is one CUDA graph of `relation.kernels.decoding` that also draws the next one; the
host launches it before it reads the one before, so that neither waits for the other. Where
`why_plain` has a reason, and on a CPU, a token is `model.decode`.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from relation.errors import InputError, RunError
from relation.kernels import decoding
from relation.kernels.checks import projection_dtype
from relation.nn.cache import Cache, DecodeState, HistoryCache
from relation.nn.model import Block, Decoder, LinearRelationMixer, RopeTables, check_tokens
from relation.variants import CALIBRATED, FULL, LINEAR

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Tokens after those that a state has read come in blocks: scores take memory linear in the text.
BLOCK = 256
CHUNK = 256  # uniform numbers are drawn for so many tokens at a time


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn. Raises InputError for values that mean nothing.

    temperature divides the logits, 0 takes the likeliest token; top_k keeps the k likeliest, None
    all; top_p keeps the fewest likeliest tokens whose probability, after top_k, reaches it.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self):
        for name, fits, give in (
            ("temperature", 0 <= self.temperature < math.inf, "0 (the likeliest token) or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1 token"),
            ("top_p", 0 < self.top_p <= 1, "a probability above 0, at most 1"),
            ("seed", 0 <= self.seed < 2**63, "a whole number from 0 to 2^63 - 1"),
        ):
            if not fits:
                raise InputError(f"{name} is {getattr(self, name)}; give {give}")

    @property
    def whole(self) -> bool:
        """Whether no token is left out, or it is the likeliest."""
        return self.temperature == 0 or (self.top_k is None and self.top_p == 1)


def next_token_probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """The distribution that the next token is drawn from, (..., V), FP64, of logits (..., V).

    Tokens that temperature, top_k and top_p leave out have probability 0; of equal logits the
    lower id comes first.
    """
    wide = logits.double()
    if sampling.temperature == 0:
        return torch.zeros_like(wide).scatter(-1, wide.argmax(dim=-1, keepdim=True), 1)
    if sampling.whole:
        return ((wide - wide.amax(dim=-1, keepdim=True)) / sampling.temperature).softmax(dim=-1)
    ranked, ids = wide.sort(dim=-1, descending=True, stable=True)
    kept = ((ranked - ranked[..., :1]) / sampling.temperature).softmax(dim=-1)
    if sampling.top_k is not None:
        kept[..., sampling.top_k :] = 0
        kept /= kept.sum(dim=-1, keepdim=True)
    if sampling.top_p < 1:
        likelier = kept.cumsum(dim=-1) - kept
        kept = kept.masked_fill(likelier >= sampling.top_p, 0)
        kept /= kept.sum(dim=-1, keepdim=True)
    return torch.zeros_like(kept).scatter(-1, ids, kept)


def _drawn_by_kernel(logits: Tensor, sampling: Sampling) -> bool:
    fits = logits.dtype == torch.float32 and logits.is_contiguous()
    return sampling.whole and fits and decoding.why_unavailable(logits.device) is None


def _temperature_on(device: torch.device, sampling: Sampling) -> Tensor | None:
    """The kernel's temperature, (1,) FP64; None for the likeliest token."""
    if sampling.temperature == 0:
        return None
    return torch.full((1,), sampling.temperature, dtype=torch.float64, device=device)


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling) -> Tensor:
    """A token of each row, (B,) int64, of logits (B, V); -1 where a row's are not all finite.

    uniforms: (B,) FP64 in [0, 1), where the row's cumulative distribution is cut.
    """
    if _drawn_by_kernel(logits, sampling):
        ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        temperature = _temperature_on(logits.device, sampling)
        decoding.draw(logits, temperature, uniforms.reshape(1, -1), ids)
        return ids
    if sampling.temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        cumulative = next_token_probabilities(logits, sampling).cumsum(dim=-1)
        ids = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(dim=-1)
    # Not `where`, which copies a number from the host: no CUDA graph can hold that.
    return ids.masked_fill(~logits.isfinite().all(dim=-1), -1)


def uniform_numbers(seed: int, rows: int) -> Iterator[Tensor]:
    """Yield the numbers of CHUNK tokens after CHUNK tokens, (CHUNK, B) FP64 in [0, 1).

    Row b's depend on the seed and on b alone. They are drawn on the CPU, so that every device draws
    the same text from the same logits.
    """
    digests = (hashlib.sha256(f"{seed}/{row}".encode()).digest() for row in range(rows))
    keys = (int.from_bytes(digest[:8], "little") >> 1 for digest in digests)
    generators = [torch.Generator().manual_seed(key) for key in keys]
    while True:
        drawn = [torch.rand(CHUNK, generator=g, dtype=torch.float64) for g in generators]
        yield torch.stack(drawn, dim=1)


class Places(NamedTuple):
    """Where a batch stands, on the device.

    lengths: (B,) int32, tokens that each row has read; active: (B,) int32, where 0 a row's Linear
    states stay; tables: RoPE's, (places, d_h) FP32.
    """

    lengths: Tensor
    active: Tensor
    tables: RopeTables


class _Layer:
    """A block's weights: norms and Givens mixing in them, what reads one input joined, all cast."""

    def __init__(self, letter: str, block: Block, dtype: torch.dtype):
        mixer, ffn, self.letter = block.mixer, block.ffn, letter
        wi = mixer.wi.weight if mixer.theta is None else mixer.mixed_wi()
        readers = [mixer.w1.weight, mixer.w2.weight, wi]
        if isinstance(mixer, LinearRelationMixer):
            vectors = mixer.a_log.detach().float(), mixer.dt_bias.detach().float()
            self.retention = (mixer.retention_up.detach().to(dtype).contiguous(), *vectors)
            readers.append(mixer.retention_down.weight)
        if letter == FULL:
            self.lam = mixer.arguments(mixer.wo.weight)[0].detach().float().clone()
            self.transport_self = mixer.options["transport_self"]
        self.inward = (torch.cat(readers) * block.mixer_norm.weight).to(dtype)
        self.outward = mixer.wo.weight.to(dtype)
        gate_up = torch.cat([ffn.gate.weight, ffn.up.weight])
        self.gate_up = (gate_up * block.ffn_norm.weight).to(dtype)
        self.down = ffn.down.weight.to(dtype)


def why_plain(model: Decoder, device: torch.device, dtype: torch.dtype) -> str | None:
    """The reason why `Prepared` cannot decode a model that computes in dtype, or None."""
    config = model.config
    for part, used in {
        "Raw-X": config.raw_information,
        "Linear Relation of shared heads": LINEAR in config.layout
        and config.shared_heads < config.heads,
        "QK-norm": config.qk_norm,
        "an output gate": config.output_gate,
        "a null logit": config.null_logit,
        "calibrated attention": CALIBRATED in config.layout,
    }.items():
        if used:
            return f"it has {part}, which the kernels do not"
    return decoding.why_not(device, dtype, config.head_dim)


class Prepared:
    """A decoder's weights to decode with `relation.kernels.decoding`; the model reads prompts.

    dtype: of the products and of the histories, BF16, FP16 or FP32. Raises InputError where
    `why_plain` has a reason.
    """

    @torch.no_grad()
    def __init__(self, model: Decoder, dtype: torch.dtype):
        self.config = model.config
        reason = why_plain(model, model.embedding.weight.device, dtype)
        if reason:
            raise InputError(f"the decoding kernels cannot run this model: {reason}")
        blocks = zip(self.config.layout, model.blocks, strict=True)
        self.layers = [_Layer(letter, block, dtype) for letter, block in blocks]
        self.embedding = model.embedding.weight.detach().float()
        self.outward = (self.embedding * model.norm.weight).to(dtype)
        self.rope_tables = model.rope_tables

    def token(self, ids: Tensor, state: DecodeState, places: Places) -> Tensor:
        """Logits (B, V) FP32 of the tokens ids, (B,) int64, which `state` takes in, in place.

        Nothing is waited for, and no length on the host changes. The places must be free: below
        the histories' capacity and the tables' length. Weights, states and places are older than
        the token, so every launch after the first, `embed`, may be chained.
        """
        config, project = self.config, partial(decoding.project, chained=True)
        x = decoding.embed(ids.contiguous(), self.embedding, config.embedding_multiplier or 1.0)
        for layer, cache in zip(self.layers, state.layers, strict=True):
            projected = project(x, layer.inward, config.norm_eps)
            y = self._mixed(layer, projected, cache, places)  # (B, d)
            project(y, layer.outward, out=x, then=decoding.ADD)
            hidden = project(x, layer.gate_up, config.norm_eps, then=decoding.GATE)  # (B, d_ff)
            project(hidden, layer.down, out=x, then=decoding.ADD)
        logits = x.new_empty(len(x), config.vocab_size)
        return project(x, self.outward, config.norm_eps, logits)

    def _mixed(self, layer: _Layer, projected: Tensor, cache: Cache, places: Places) -> Tensor:
        """The mixer's y, (B, d), of its projections of a token."""
        config, (lengths, active, tables) = self.config, places
        projected = projected.unflatten(1, (-1, config.head_dim))
        if layer.letter == LINEAR:
            projected = projected.unflatten(1, (4, config.heads))  # (B, 4, H, d_h)
            given = layer.retention, tables, cache.tensors[0], lengths, active, config.tau
            return decoding.linear_token(projected, projected[:, 3], *given, chained=True)
        given = [projected, tables, cache.tensors, lengths]  # (B, H + 2 shared heads, d_h)
        if layer.letter == FULL:
            given += layer.lam, config.tau, layer.transport_self
        return decoding.history_token(*given, chained=True)


class Replay:
    """One token after another: reads `ids`, draws the next into it, counts where rows stand.

    logits: (B, V) of the prompts' last tokens, from which the first ids are drawn; state: what
    has read the prompts; stop: a row that draws it has ended, and reads nothing more. A graph is of
    one capacity: where a state is full, its memory doubles and the token is captured anew. On a
    CPU, in Triton's interpreter, the token is run as it is.
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
        self._uniforms = uniform_numbers(sampling.seed, rows)
        self._numbers = torch.empty(CHUNK, rows, dtype=torch.float64, device=self._device)
        self._place = torch.zeros(rows, dtype=torch.int64, device=self._device)
        self._temperature = _temperature_on(self._device, sampling)
        self._drawn = 0
        self._refill()
        self.longest = state.length
        lengths = torch.full((rows,), state.length, dtype=torch.int32, device=self._device)
        if state.lengths is not None:
            lengths.copy_(state.lengths)
        self.ids = draw(logits, self._numbers[0], sampling)
        ended = self.ids == stop if stop is not None else torch.zeros_like(self.ids)
        for cache in state.layers:
            cache.tensors = tuple(x.contiguous() for x in cache.tensors)
        self._places = Places(lengths, (ended == 0).to(torch.int32), self._room())
        host = partial(torch.empty, rows, dtype=torch.int64, pin_memory=self._on_gpu)
        self._notes = [host(), host()]
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

    def note(self) -> Callable[[], list[int]]:
        """A function that waits for the ids at this point of the GPU's work; at most two are open.

        So the host reads them while the GPU works on the next token.
        """
        self._notes.reverse()
        buffer = self._notes[0]
        buffer.copy_(self.ids, non_blocking=True)
        if not self._on_gpu:
            return buffer.tolist
        drawn = torch.cuda.Event()
        drawn.record(torch.cuda.current_stream(self._device))
        return lambda: drawn.synchronize() or buffer.tolist()

    def rewind(self, tokens: int) -> None:
        """Let every row have read so many tokens, no more than it has room for: to time one."""
        self._places.lengths.fill_(tokens)
        self.longest = tokens

    def run(self, count: int) -> Iterator[list[int]]:
        """Yield the ids of `count` tokens, (B,) each; at the end the state learns its lengths."""
        try:
            for drawn in range(1, count + 1):
                note = self.note()
                if drawn < count:
                    self.next()
                yield note()
        finally:
            self._state.settle(self._places.lengths.tolist())

    def _token(self) -> None:
        """What one graph holds."""
        lengths, active, _ = self._places
        logits = self._prepared.token(self.ids, self._state, self._places)
        if _drawn_by_kernel(logits, self._sampling):
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

    def _room(self) -> RopeTables:
        """Take memory for another token, a full history's twice over; returns RoPE's tables."""
        histories = [layer for layer in self._state.layers if isinstance(layer, HistoryCache)]
        for history in histories:
            history.length = self.longest
            history.reserve(self.longest + 1)
        capacities = [history.capacity for history in histories]
        places = max([1 << self.longest.bit_length(), *capacities])  # a Linear state has no end
        self._capacity = min([places, *capacities])
        return self._prepared.rope_tables(torch.arange(places, device=self._device))

    def _prepare(self) -> None:
        """Compile the token's kernels and capture it; on a CPU it is run as it is."""
        if not self._on_gpu:
            self._run = self._token
            return
        counted = [self.ids, self._place, self._places.lengths, self._places.active]
        kept = [x.clone() for x in counted]
        # Rows that have ended read nothing: only places past their ends are written.
        self._places.active.zero_()
        with torch.cuda.device(self._device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    self._token()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._token()
        for x, value in zip(counted, kept, strict=True):
            x.copy_(value)
        self._run = graph.replay

    def _refill(self) -> None:
        """Send the uniform numbers of the next CHUNK tokens."""
        numbers = next(self._uniforms)
        self._numbers.copy_(numbers.pin_memory() if self._on_gpu else numbers, non_blocking=True)


def generate_tokens(
    model: Decoder,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
    state: DecodeState | None = None,
) -> Iterator[int]:
    """Yield up to `count` token ids that continue the prompt's ids, as soon as they are drawn.

    Ends before the token `stop`, which is not yielded. `state` is the decode state to go on from,
    an empty one by default; it takes the prompt and each token that another one follows, and on a
    GPU is up to date when the iterator has ended. Under autocast tokens are computed in its dtype.
    For one seed, devices differ only where the rounding of their logits decides. Raises InputError
    for an empty prompt, an id outside the vocabulary or a count below 1, RunError for logits that
    are not finite.
    """
    rows = continuations(model, [prompt], count, sampling, stop, state or model.decode_state())
    return (row[0] for row in rows)


def generate_batch(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None = None,
) -> list[list[int]]:
    """Up to `count` token ids that continue each prompt's ids, in one batch.

    Prompts may differ in length. What row b draws depends on the seed and on b, not on the other
    rows, but for the rounding of the prompts' products. Everything else is as `generate_tokens`.
    """
    steps = continuations(model, prompts, count, sampling, stop, model.decode_state())
    rows = zip(*steps, strict=True)
    return [[token for token in row if token is not None] for row in rows] or [[] for _ in prompts]


def continuations(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    count: int,
    sampling: Sampling,
    stop: int | None,
    state: DecodeState,
) -> Iterator[list[int | None]]:
    """Yield each row's next id, None where it has ended, until all have; as `generate_tokens`."""
    if count < 1 or not len(prompts):
        wrong = f"{count} tokens were asked for" if count < 1 else "there is no prompt in the batch"
        raise InputError(f"{wrong}; give at least 1")
    for row, prompt in enumerate(prompts):
        if not len(prompt) or not all(isinstance(token, Integral) for token in prompt):
            which = "the prompt" if len(prompts) == 1 else f"prompt {row}"
            raise InputError(f"{which} is empty or holds no token ids; give whole numbers")
    rows = [torch.tensor(prompt) for prompt in prompts]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    check_tokens(padded, model.config.vocab_size)  # on the CPU, where ids are read

    def drawn() -> Iterator[list[int | None]]:
        device, dtype = model.embedding.weight.device, projection_dtype(model.embedding.weight)
        tokens = padded.to(device)
        if len(rows) > 1 or not state.length:
            logits = model.read(tokens, state, list(map(len, rows)))
        else:
            for block in tokens.split(BLOCK, dim=1):
                logits = model.read(block, state)
        if why_plain(model, device, dtype) is None:
            steps = Replay(Prepared(model, dtype), state, logits, sampling, stop).run(count)
        else:
            steps = _plain(model, logits, sampling, count, state)
        live = [True] * len(prompts)
        for ids in steps:
            if any(alive and token < 0 for alive, token in zip(live, ids, strict=True)):
                raise RunError(
                    f"the logits after {state.length} tokens are not finite; the weights are "
                    "broken or the precision is too low"
                )
            live = [alive and token != stop for alive, token in zip(live, ids, strict=True)]
            if not any(live):
                return
            yield [token if alive else None for alive, token in zip(live, ids, strict=True)]

    return drawn()  # what is refused is refused before the first token is asked for


def _plain(
    model: Decoder, logits: Tensor, sampling: Sampling, count: int, state: DecodeState
) -> Iterator[list[int]]:
    """Yield the ids (B,) of each of `count` tokens, read one by one by `model.decode`."""
    uniforms = uniform_numbers(sampling.seed, len(logits))
    for drawn in range(count):
        if drawn % CHUNK == 0:
            numbers = next(uniforms).to(logits.device)
        ids = draw(logits, numbers[drawn % CHUNK], sampling)
        yield ids.tolist()
        if drawn + 1 < count:
            logits = model.decode(ids[:, None], state)[:, -1]


def stream_text(tokenizer: "Tokenizer", tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of byte-level BPE tokens piece by piece, only whole characters.

    A character of several bytes may span tokens: it is held back until it is complete. Bytes that
    never become a character come out as U+FFFD. The pieces joined are the decoded whole.
    """
    from tokenizers.decoders import DecodeStream  # not one of the library's packages

    stream, ids, told = DecodeStream(skip_special_tokens=False), [], 0
    for token in tokens:
        ids.append(token)
        if piece := stream.step(tokenizer, token):
            told += len(piece)
            yield piece
    if rest := tokenizer.decode(ids, skip_special_tokens=False)[told:]:
        yield rest
