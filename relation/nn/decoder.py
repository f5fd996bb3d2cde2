"""The decoder: embedding, pre-norm blocks of a mixer and SwiGLU, tied output.

Of it the paper prints widths and counts of parameters (Appendix B.1), not the blocks; with these
the counts come out exactly.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation.errors import InputError
from relation.kernels.documents import Documents
from relation.nn.cache import DecodeState, HistoryCache, LinearState
from relation.nn.execution import Execution
from relation.nn.mixers import FullRelationMixer, RopeTables, build_mixer
from relation.nn.norm import FoldedRMSNorm, Normed, PlainRMSNorm
from relation.ops.rope import rope_angles
from relation.variants import LINEAR, MIXERS, ModelConfig


class SwiGLU(nn.Module):
    """Normed (B, T, d) to (B, T, d) through d_ff, three matrices."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Normed) -> Tensor:
        return self.down(F.silu(x.through(self.gate)) * x.through(self.up))


class Block(nn.Module):
    """One pre-norm layer: X + Mixer(norm X), then X + SwiGLU(norm X); X is (B, T, d)."""

    def __init__(self, config: ModelConfig, layer_index: int, calls, plain: bool):
        super().__init__()
        norm = PlainRMSNorm if plain else FoldedRMSNorm
        self.mixer_norm = norm(config.d_model, eps=config.norm_eps)
        self.mixer = build_mixer(config, layer_index, calls)
        if plain and isinstance(self.mixer, FullRelationMixer):
            self.mixer.hold_as_vector()
        self.ffn_norm = norm(config.d_model, eps=config.norm_eps)
        self.ffn = SwiGLU(config.d_model, config.d_ff)

    def forward(
        self,
        x: Tensor,
        rope: RopeTables,
        cache: HistoryCache | LinearState | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), x, rope, cache, documents)
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """A decoder-only language model of the paper.

    config: the model; execution: the backends that run its operators. Parameters are FP32.
    plain: whether norms apply their scales, so that every projection is called as the module it is
    and LoRA, quantisers, hooks and FSDP see it; else the projections' weights take the scales,
    which trains faster. Both forms have the same parameters by the same names (lambda is (1,) in
    the plain one), so that either loads the other's state, and their results are equal up to
    rounding.
    Raises InputError for an unknown backend.
    """

    def __init__(
        self, config: ModelConfig, execution: Execution | None = None, *, plain: bool = False
    ):
        super().__init__()
        self.config = config
        calls = (execution or Execution()).calls(config)
        # `initialise` draws it. PyTorch's own draw, on the meta device, imports its compiler.
        weight = torch.zeros(config.vocab_size, config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, _weight=weight)
        self.blocks = nn.ModuleList(Block(config, i, calls, plain) for i in range(config.layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)

    def run_by(self, execution: Execution) -> None:
        """Run the operators by other backends. Raises InputError for one the device cannot run."""
        calls = execution.calls(self.config, self.embedding.weight.device)
        for letter, block in zip(self.config.layout, self.blocks, strict=True):
            block.mixer.call = calls[MIXERS[letter]]

    def rope_tables(self, length: int, device: torch.device, offset: int = 0) -> RopeTables:
        """Cosine and sine for positions offset .. offset + length - 1, shared by all layers."""
        config = self.config
        return rope_angles(length, config.head_dim, config.rope_base, offset, device)

    def document_tables(self, tokens: Tensor, documents: Documents | None) -> RopeTables:
        """`rope_tables` of tokens (B, T): (T, d_h), or (B, T, d_h) by their places in documents."""
        tables = self.rope_tables(tokens.shape[1], tokens.device)
        if documents is None:
            return tables
        cos, sin = tables
        return cos[documents.positions], sin[documents.positions]

    def forward(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Logits (B, T, V) of tokens (B, T), int64; each as where its document stands alone.

        Raises InputError for documents of other tokens or a backend that takes none.
        """
        return self.logits(self.states(tokens, documents))

    def states(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """The last block's output after the last norm, (B, T, d), of tokens (B, T), int64."""
        x = self.embed(tokens)
        rope = self.document_tables(tokens, documents)
        for block in self.blocks:
            x = block(x, rope, documents=documents)
        return self.norm(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first block reads, (B, T, d), of tokens (B, T)."""
        x = self.embedding(tokens)
        multiplier = self.config.embedding_multiplier
        return x if multiplier is None else x * multiplier

    def logits(self, states: Tensor) -> Tensor:
        """Logits (B, T, V) of `states`; the output matrix is the embedding's."""
        return F.linear(states, self.embedding.weight)

    def decode_state(self, capacity: int = 256) -> DecodeState:
        """An empty state to decode from; memory for `capacity` tokens is taken at the first."""
        return DecodeState(self.config.layout, capacity)

    @torch.no_grad()
    def decode(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Logits (B, n, V) of the next n tokens (B, n) after those that `state` has read.

        They are the forward's last n rows, and `state` takes the tokens in: ids in int64 or int32
        below the vocabulary's size, which is not checked, as a GPU would have to be waited for. A
        prompt is read in one block or several, then n = 1 a step. An empty state's first block runs
        the backends; later ones of MHA and Full layers run the decoding forms of the reference
        operators. Nothing is differentiable. Raises InputError for tokens of another shape or
        dtype, or a state of another model or batch.
        """
        return self.logits(self.decode_states(tokens, state))

    @torch.no_grad()
    def read(
        self, tokens: Tensor, state: DecodeState, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Logits (B, V) of each row's last token; otherwise as `decode`.

        lengths: of prompts of unequal length, how many of the row's tokens are its own; it is
        padded at the right with any ids, and `state` must be empty. Raises InputError for lengths
        that do not fit, an empty prompt among them, and as `decode` does.
        """
        if lengths is None:
            return self.logits(self.decode_states(tokens, state)[:, -1])
        state.check(self.config.layout, tokens, lengths)
        last = torch.tensor(lengths, device=tokens.device)
        if len(set(lengths)) > 1:
            state.begin(last)
        states = self.decode_states(tokens[:, : max(lengths)], state)
        return self.logits(states[torch.arange(len(tokens), device=tokens.device), last - 1])

    def decode_states(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """`states` of the next n tokens, (B, n, d), which `state` takes in; as `decode`."""
        state.check(self.config.layout, tokens)
        x = self.embed(tokens)
        rope = self._decoding_tables(tokens, state)
        for block, cache in zip(self.blocks, state.layers, strict=True):
            x = block(x, rope, cache)
        return self.norm(x)

    def _decoding_tables(self, tokens: Tensor, state: DecodeState) -> RopeTables:
        """RoPE's tables of the next tokens, (n, d_h), or (B, n, d_h) for rows of unequal length."""
        n, device = tokens.shape[1], tokens.device
        if state.lengths is None or not state.length:
            return self.rope_tables(n, device, state.length)
        tables = state.tables(partial(self.rope_tables, device=device), state.length + n)
        places = state.lengths[:, None] + torch.arange(n, device=device)
        cos, sin = (table[places] for table in tables)
        return cos, sin

    def flows(self, tokens: Tensor, documents: Documents | None = None) -> Iterator[Tensor]:
        """Yield each layer's normalised flow (B, H, T, T), FP32, one layer at a time.

        Appendix B.5: reconstructed from Q and K for MHA, the actual F for Full Relation. What a
        layer passes on is transported by that very flow, whatever backend executes the model.
        Raises InputError for a model with Linear layers, which form no token-to-token flow.
        """
        if LINEAR in self.config.layout:
            raise InputError(
                f"layer {self.config.layout.index(LINEAR)} is Linear Relation, which has no T x T "
                "flow to diagnose"
            )
        x = self.embed(tokens)
        rope = self.document_tables(tokens, documents)
        for block in self.blocks:
            normed = block.mixer_norm(x)
            flow = block.mixer.flow(normed, rope, documents)
            yield flow
            x = x + block.mixer.transport(normed, flow)
            x = x + block.ffn(block.ffn_norm(x))
            del flow

    def parameter_count(self) -> int:
        """Number of trained scalars, the tied matrix counted once."""
        return sum(p.numel() for p in self.parameters())

    @torch.no_grad()
    def initialise(self, seed: int, key: str = "") -> None:
        """Draw the initial weights, each from a generator keyed by (seed, key, parameter name).

        So the weights that paired variants share start equal, whatever else a variant adds; with
        different keys all weights differ.
        """
        prefix = f"{key}/" if key else ""
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                parameter.copy_(self._drawn(name, parameter, _generator(seed, prefix + name)))
        for index, block in enumerate(self.blocks):

            def draw(name: str, shape: torch.Size, layer: int = index) -> Tensor:
                generator = _generator(seed, f"{prefix}blocks.{layer}.{name}")
                return torch.rand(shape, generator=generator)

            block.mixer.draw_vectors(self.config, draw)

    def _drawn(self, name: str, weight: Tensor, generator: torch.Generator) -> Tensor:
        """Initial values of one matrix: (out, in), or the embedding's (V, d)."""
        config, embedding = self.config, name == "embedding.weight"
        if config.linear_init == "torch" and not embedding:
            values = 2 * torch.rand(weight.shape, generator=generator) - 1
            scale = weight.shape[1] ** -0.5
        else:
            values = torch.randn(weight.shape, generator=generator)
            own = embedding and config.embedding_std is not None
            scale = config.embedding_std if own else config.init_std
        if config.scale_residual_init and name.endswith(("mixer.wo.weight", "ffn.down.weight")):
            scale /= (2 * config.layers) ** 0.5
        return values * scale


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def shared_weights_hash(model: Decoder) -> str:
    """SHA-256 of the matrices that MHA and Full Relation have in common, by name.

    Taken before training, it proves that the two runs of a pair started from the same weights.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim == 2:
            digest.update(name.encode())
            digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
