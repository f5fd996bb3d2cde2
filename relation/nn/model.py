"""The paper's decoder in one file, from token ids to logits.

    tokens (B, T) -> embedding X (B, T, d) -> blocks: X + Mixer(norm X), X + SwiGLU(norm X)
    -> norm -> logits (B, T, V), with the embedding's matrix

The paper gives the model's widths and parameter counts (Appendix B.1) but does not describe its
norms and FFN. RMSNorm, SwiGLU, a tied output matrix and no biases give exactly these counts.

B: batch, T: tokens, d: model width, H: heads, d_h = d / H: head width, V: vocabulary. Equation
numbers are the paper's. A mixer computes the equations in this order:

    P_1, P_2    coordinates        Eq. 1    Mixer.coordinates
    I-tilde     information        Eq. 4    Mixer.information
    U, S, E, R  relation matrix    Eq. 1, 2 relation.ops.full
    F, Y = F I  flow, transport    Eq. 3    relation.ops.full
    g, C, Y     Linear Relation    Eq. 14-16, LinearRelationMixer and relation.ops.linear
    Y W_O       output             Eq. 4    Mixer.output

A norm returns a `Normed`: the states divided by their root mean square, and the scale, which is not
applied yet. A projection can multiply the scale into its weight (see `relation.nn.norms`).
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from relation import ops
from relation.errors import InputError
from relation.kernels.checks import check_device
from relation.kernels.documents import Documents, check_documents
from relation.nn.cache import Cache, DecodeState, HistoryCache, LinearState
from relation.nn.norms import HeadRMSNorm, Normed, RMSNorm
from relation.ops.backends import Execution
from relation.ops.rotations import apply_rope, rope_angles
from relation.variants import CALIBRATED, FULL, LINEAR, MHA, OPERATORS, ModelConfig

RopeTables = tuple[Tensor, Tensor]
Call = Callable[..., Tensor]


class Mixer(nn.Module):
    """Base of all mixers: two rotated coordinates, one transported state, an output projection.

    `w1`, `w2` and `wi` are Q, K, V in MHA and W_1, W_2, W_I in Relation. The shared names give
    paired models the same initial values. Modules that a model does not have are None: `wi` in
    Raw-X, `norm1` and `norm2` without QK-norm, `wg` without an output gate, and `theta` without
    Givens mixing. call: the function that computes the operator.
    """

    mixes_heads = False  # whether Givens rotations mix the heads of information (Eq. 4)

    def __init__(self, config: ModelConfig, layer_index: int, call: Call):
        super().__init__()
        self.heads, self.head_dim, self.call = config.heads, config.head_dim, call
        self.tau = config.tau
        d, shared = config.d_model, config.shared_heads * config.head_dim
        self.w1 = nn.Linear(d, d, bias=False)
        self.w2 = nn.Linear(d, shared, bias=False)
        self.wi = None if config.raw_information else nn.Linear(d, shared, bias=False)
        self.wo = nn.Linear(d, d, bias=False)
        self.norm1 = HeadRMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.norm2 = HeadRMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else None
        self.wg = nn.Linear(d, d, bias=False) if config.output_gate else None
        self.theta = None
        if self.mixes_heads and config.givens:
            self.theta = nn.Parameter(torch.zeros(config.shared_heads // 2))
        # Only the parity, because torch.compile would compile again for each value of a constant.
        self.pairing = layer_index % 2

    def split(self, x: Tensor) -> Tensor:
        """(B, T, H d_h) to (B, H, T, d_h); H may be the smaller number of shared heads."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def coordinates(self, x: Normed, rope: RopeTables) -> tuple[Tensor, Tensor]:
        """P_1 = X W_1 and P_2 = X W_2 with RoPE (Eq. 1), (B, H, T, d_h); P_2 may have fewer heads.

        With QK-norm, each head is normalised before RoPE.
        """
        p1, p2 = self.split(x.through(self.w1)), self.split(x.through(self.w2))
        if self.norm1 is not None:
            p1, p2 = self.norm1(p1), self.norm2(p2)
        return apply_rope(p1, *rope), apply_rope(p2, *rope)

    def information(self, x: Normed) -> Tensor:
        """I = X W_I, or X itself in Raw-X; with Givens mixing I-tilde (Eq. 4). In MHA it is V.

        (B, H, T, d_h), or fewer heads. RoPE does not rotate it.
        """
        if self.wi is not None and self.theta is not None and x.may_fold(self.wi):
            # Mixing W_I's rows (d x d numbers) equals mixing the states of all tokens, because it
            # acts on heads. The norm's scale comes first, so its gradient reads W_I, not the mix.
            return self.split(F.linear(x.states, self.mixed(x.fold(self.wi.weight))))
        info = self.split(x.scaled() if self.wi is None else x.through(self.wi))
        return info if self.theta is None else ops.givens_mix(info, self.theta, self.pairing)

    def mixed(self, weight: Tensor) -> Tensor:
        """A projection to information, (H d_h, d), with its heads' rows mixed."""
        heads = weight.unflatten(0, (1, -1, self.head_dim))  # (1, H, d_h, d)
        return ops.givens_mix(heads, self.theta, self.pairing).flatten(0, 2)

    def output(self, y: Tensor, x: Normed) -> Tensor:
        """Concat_h(Y) W_O (Eq. 4), y (B, H, T, d_h) to (B, T, d); an output gate reads x."""
        y = y.transpose(1, 2).flatten(2)  # (B, T, H d_h)
        if self.wg is not None:
            y = y * torch.sigmoid(x.through(self.wg))
        return self.wo(y)


class HistoryMixer(Mixer):
    """A mixer that forms a flow F between tokens, Y = F I (equation 3): MHA and Full Relation.

    step: computes new tokens while decoding. flow_of: computes F. options: keyword arguments of
    every call.
    """

    step: Call
    flow_of: Call
    options: dict[str, bool]

    def arguments(self, p1: Tensor) -> tuple:
        """The operator's arguments that come after p1, p2 and information."""
        return ()

    def forward(
        self,
        x: Normed,
        rope: RopeTables,
        cache: HistoryCache | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        """X (B, T, d) to Y W_O (B, T, d).

        While decoding, x holds the new tokens and the cache stores them. The first block, a prompt,
        runs the backend; later blocks run `step`. With documents, positions restart in each.
        """
        p1, p2 = self.coordinates(x, rope)  # (B, H, T, d_h) each; p2 may have fewer heads
        # Under autocast the projections are BF16 but Raw-X's scaled X is FP32.
        info = self.information(x).to(p1.dtype)
        arguments = self.arguments(p1)
        if cache is None or cache.length == 0:
            y = self.call(p1, p2, info, *arguments, **self.options, documents=documents)
            if cache is not None:  # after the backend, which may refuse the block
                cache.append(p2, info)
        else:
            history = cache.append(p2, info)  # two tensors, (B, H, all tokens read, d_h)
            visible = cache.visible(p1.shape[2])
            y = self.step(p1, *history, *arguments, **self.options, visible=visible)
        return self.output(y, x)

    def flow(self, x: Normed, rope: RopeTables, documents: Documents | None = None) -> Tensor:
        """The layer's flow F (B, H, T, T), FP32 at least (Eq. 3)."""
        p1, p2 = self.coordinates(x, rope)
        # Exchange-only transport does not change F; `transport` leaves out its diagonal.
        options = {k: v for k, v in self.options.items() if k != "transport_self"}
        return self.flow_of(p1, p2, *self.arguments(p1), **options, documents=documents)

    def transport(self, x: Normed, flow: Tensor) -> Tensor:
        """The mixer's output (B, T, d), from x and the flow that `flow` returned for it."""
        if not self.options.get("transport_self", True):
            flow = flow.tril(-1)
        info = ops.for_heads(self.information(x), self.heads)  # (B, H, T, d_h)
        return self.output(flow.to(info.dtype) @ info, x)


class AttentionMixer(HistoryMixer):
    """Multi-head attention with RoPE on Q and K."""

    step = staticmethod(ops.attention_step)
    flow_of = staticmethod(ops.causal_flow)

    def __init__(self, config: ModelConfig, layer_index: int, call: Call):
        super().__init__(config, layer_index, call)
        self.options = {"null": True} if config.null_logit else {}


class FullRelationMixer(HistoryMixer):
    """Multi-Head Relation (Section 3.2) with the layer's count calibration lambda.

    R_ij = SiLU(U_ij) - lambda log i for j < i and R_ii = sigmoid(U_ii / tau) (Eq. 2).
    """

    mixes_heads = True
    step = staticmethod(ops.full_relation_step)
    flow_of = staticmethod(ops.full_flow)

    def __init__(self, config: ModelConfig, layer_index: int, call: Call):
        super().__init__(config, layer_index, call)
        self.options = {"transport_self": config.transport_self}
        lam = nn.Parameter(torch.tensor(config.lambda_init)) if config.count_calibration else None
        self.register_parameter("lam", lam)

    def arguments(self, p1: Tensor) -> tuple[Tensor, float]:
        """lambda, in FP32 at least even if the parameters have 16 bits, and tau (Eq. 2)."""
        lam = p1.new_zeros(()) if self.lam is None else self.lam
        return lam.to(torch.promote_types(lam.dtype, torch.float32)), self.tau


class CalibratedMixer(FullRelationMixer):
    """MHA with Relation's count and Self: equation 2 without SiLU, as a control for the mechanism.

    R_ij = U_ij - lambda log i for j < i, R_ii = sigmoid(U_ii / tau). Heads are not mixed.
    """

    mixes_heads = False
    step = staticmethod(partial(ops.full_relation_step, silu=False))
    flow_of = staticmethod(partial(ops.full_flow, silu=False))


class LinearRelationMixer(Mixer):
    """Linear Relation (Section 5.2) with the channel-wise retention of Kimi Delta Attention.

    The retention path has two matrices per head, d -> d_h -> d_h, and A_log and dt_bias per
    channel. This gives the paper's parameter count of the Hybrid. KDA's published code shares one
    pair, d -> d_h -> d, and has A_log per head. g and C are FP32 at least.
    """

    mixes_heads = True

    def __init__(self, config: ModelConfig, layer_index: int, call: Call):
        super().__init__(config, layer_index, call)
        d, width = config.d_model, config.head_dim
        self.retention_down = nn.Linear(d, d, bias=False)
        self.retention_up = nn.Parameter(torch.empty(config.heads, width, width))
        self.a_log = nn.Parameter(torch.empty(d))
        self.dt_bias = nn.Parameter(torch.empty(d))

    def log_retention(self, x: Normed) -> Tensor:
        """g = -exp(A_log) softplus(r + dt_bias) <= 0, (B, H, T, d_h), FP32 at least (Eq. 15)."""
        down = x.through(self.retention_down)  # (B, T, d)
        # One product per head over all tokens: (H, B T, d_h) by (H, d_h, d_h). einsum would run
        # twice as many operators.
        heads = down.flatten(0, 1).unflatten(1, (self.heads, -1)).transpose(0, 1)
        r = torch.bmm(heads, self.retention_up.mT).unflatten(1, down.shape[:2]).transpose(0, 1)
        wide = torch.promote_types(self.a_log.dtype, torch.float32)
        # (d,) to (H, 1, d_h), which broadcasts to the shape of r, (B, H, T, d_h)
        a, bias = (p.to(wide).unflatten(0, (self.heads, 1, -1)) for p in (self.a_log, self.dt_bias))
        return -a.exp() * F.softplus(r.to(wide) + bias)

    def forward(
        self,
        x: Normed,
        rope: RopeTables,
        cache: LinearState | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        """X (B, T, d) to Y W_O (B, T, d). While decoding, the cache stores the C after the last x.

        With documents, each document starts with C = 0 and its positions restart.
        """
        p1, p2 = self.coordinates(x, rope)
        g, tokens = self.log_retention(x), x.states.shape[1]  # (B, H, T, d_h), T
        C = cache.tensors[0] if cache is not None and cache.tensors else None  # (B, H, d_h, d_h)
        padding = None if cache is None else cache.padding(tokens)
        if padding is not None:
            # Padding forgets nothing and writes nothing, so C stays that of the row's last token.
            p2, g = (s.masked_fill(padding[:, None, :, None], 0) for s in (p2, g))
        y, C = self.call(p1, p2, self.information(x), g, self.tau, C, documents=documents)  # Eq. 16
        if cache is not None:
            cache.replace(C, tokens)
        return self.output(y, x)


MIXERS: dict[str, type[Mixer]] = {
    MHA: AttentionMixer,
    FULL: FullRelationMixer,
    LINEAR: LinearRelationMixer,
    CALIBRATED: CalibratedMixer,
}


class SwiGLU(nn.Module):
    """The feed-forward network: a Normed of (B, T, d) to (B, T, d), through width d_ff."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Normed) -> Tensor:
        return self.down(F.silu(x.through(self.gate)) * x.through(self.up))


class Block(nn.Module):
    """One pre-norm layer: X + Mixer(norm X), then X + SwiGLU(norm X); X is (B, T, d)."""

    def __init__(self, config: ModelConfig, layer_index: int, calls: dict[str, Call]):
        super().__init__()
        letter = config.layout[layer_index]
        self.mixer_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.mixer = MIXERS[letter](config, layer_index, calls[OPERATORS[letter]])
        self.ffn_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.ffn = SwiGLU(config.d_model, config.d_ff)

    def forward(
        self,
        x: Tensor,
        rope: RopeTables,
        cache: Cache | None = None,
        documents: Documents | None = None,
    ) -> Tensor:
        x = x + self.mixer(self.mixer_norm(x), rope, cache, documents)  # X + Y W_O, Eq. 3 and 4
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    """A decoder-only language model of the paper, with FP32 parameters.

    config: the model's shape. execution: the backends that run its operators. seed: the seed of the
    initial weights (see `initialise`); None does not draw them, for callers that load weights.
    device: the device of the parameters; None: PyTorch's default device. Raises InputError for an
    unknown backend or one that `device` cannot run.
    """

    def __init__(
        self,
        config: ModelConfig,
        execution: Execution | None = None,
        seed: int | None = 0,
        device: torch.device | None = None,
    ):
        super().__init__()
        self.config = config
        calls = (execution or Execution()).calls(config, device)
        # Given as zeros, because PyTorch's own draw imports its compiler on the meta device.
        weight = torch.zeros(config.vocab_size, config.d_model)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, _weight=weight)
        self.blocks = nn.ModuleList(Block(config, i, calls) for i in range(config.layers))
        # PyTorch's own class, which applies its scale: the tied output matrix is used unchanged.
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        if seed is not None and not weight.is_meta:
            self.initialise(seed)
        if device is not None:
            self.to(device)

    def forward(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Logits (B, T, V) of tokens (B, T), int64 or int32; a token sees only its own document.

        Raises InputError for tokens of another shape or dtype and for documents that do not fit
        them, and on a CPU for ids outside the vocabulary. On a GPU this check would have to wait.
        """
        return self.logits(self.states(tokens, documents))

    def states(
        self,
        tokens: Tensor,
        documents: Documents | None = None,
        state: DecodeState | None = None,
        run: Callable[..., Tensor] = lambda block, *inputs: block(*inputs),
    ) -> Tensor:
        """The output of the last norm, (B, T, d), for tokens (B, T).

        state: the decode state of the tokens before; it stores these tokens too (see `decode`).
        run: runs each block, for example with gradient checkpointing.
        """
        x = self.embed(tokens)  # (B, T, d)
        caches: Sequence[Cache | None] = [None] * len(self.blocks)
        if state is not None:
            state.check(self.config.layout)
            caches = state.layers
        # (T, d_h) each, or (B, T, d_h) if positions differ between rows
        rope = self.rope_tables(places_of(tokens, documents, caches[0]))
        for block, cache in zip(self.blocks, caches, strict=True):
            x = run(block, x, rope, cache, documents)
        return self.norm(x)

    def embed(self, tokens: Tensor) -> Tensor:
        """The input of the first block, (B, T, d), for tokens (B, T)."""
        check_tokens(tokens, len(self.embedding.weight))
        x = self.embedding(tokens)  # (B, T, d)
        multiplier = self.config.embedding_multiplier
        return x if multiplier is None else x * multiplier

    def logits(self, states: Tensor) -> Tensor:
        """Logits (B, T, V) of `states`. The output matrix is the embedding's."""
        check_device(states, self.embedding.weight)  # offloading may have moved the weight
        return F.linear(states, self.embedding.weight)

    def rope_tables(self, places: Tensor) -> RopeTables:
        """RoPE's cosine and sine, (..., d_h) each, for positions (...); shared by all layers."""
        return rope_angles(places, self.config.head_dim, self.config.rope_base)

    def decode_state(self, capacity: int = 256) -> DecodeState:
        """An empty decode state. The first block allocates memory for `capacity` tokens."""
        return DecodeState(self.config.layout, capacity)

    @torch.no_grad()
    def decode(self, tokens: Tensor, state: DecodeState) -> Tensor:
        """Logits (B, n, V) of the next n tokens (B, n): the last n rows of `forward` on the text.

        `state` stores the tokens. Read a prompt in one or more blocks, then one token per call. The
        first block runs the backends; later blocks run the mixers' `step` in MHA and Full layers.
        Raises InputError as `forward` does, and for a state that does not fit the model.
        """
        return self.logits(self.states(tokens, state=state))

    @torch.no_grad()
    def read(
        self, tokens: Tensor, state: DecodeState, lengths: Sequence[int] | None = None
    ) -> Tensor:
        """Logits (B, V) of each row's last token; otherwise like `decode`.

        lengths: for prompts padded at the right, the number of tokens of each row without padding.
        `state` must then be empty.
        """
        if lengths is None:
            return self.logits(self.states(tokens, state=state)[:, -1])
        check_tokens(tokens, self.config.vocab_size)
        tokens, counts = state.begin(tokens, lengths)
        states = self.states(tokens, state=state)  # (B, n, d)
        return self.logits(states[torch.arange(len(tokens), device=tokens.device), counts - 1])

    @torch.no_grad()
    def flows(self, tokens: Tensor, documents: Documents | None = None) -> Iterator[Tensor]:
        """Yield each layer's flow F (B, H, T, T), FP32 at least, layer by layer (Appendix B.5).

        The next layer's input is computed from this same flow, whichever backends the model has.
        Raises InputError for a model with Linear layers, which form no T x T flow.
        """
        if LINEAR in self.config.layout:
            raise InputError(
                f"layer {self.config.layout.index(LINEAR)} is Linear Relation, which has no T x T "
                "flow to diagnose"
            )
        x = self.embed(tokens)
        rope = self.rope_tables(places_of(tokens, documents))
        for block in self.blocks:
            normed = block.mixer_norm(x)
            flow = block.mixer.flow(normed, rope, documents)
            yield flow
            x = x + block.mixer.transport(normed, flow)
            x = x + block.ffn(block.ffn_norm(x))
            del flow  # frees the memory before the next layer forms its own flow

    @torch.no_grad()
    def initialise(self, seed: int, key: str = "") -> None:
        """Draw the initial weights, each from a generator keyed by (seed, key, parameter name).

        So parameters that two variants share start with equal values, whatever else a variant adds.
        Parameters that transformers has loaded keep their values.
        """
        keys = f"{seed}/{key}" if key else str(seed)
        for name, parameter in self.named_parameters():
            if not getattr(parameter, "_is_hf_initialized", False):
                parameter.copy_(_initial_values(self.config, name, parameter, keys))


def _initial_values(config: ModelConfig, name: str, parameter: Tensor, key: str) -> Tensor:
    """The initial values of one parameter, in its shape. name: its name in a `Decoder`."""
    kind, shape = name.rpartition(".")[2], parameter.shape
    if kind in ("a_log", "dt_bias"):
        # The key has no `mixer.`, because the first runs were made when the names had none.
        generator = keyed_generator(f"{key}/{name.replace('mixer.', '')}")
        return retention_start(kind, torch.rand(shape, generator=generator, device="cpu"))
    if len(shape) < 2:  # lambda, the angles, the gains of norms
        return torch.full_like(parameter, {"lam": config.lambda_init, "theta": 0.0}.get(kind, 1.0))
    # A matrix (out, in), one matrix per head (H, out, in), or the embedding (V, d).
    generator = keyed_generator(f"{key}/{name}")
    is_embedding = name == "embedding.weight"
    if config.linear_init == "torch" and not is_embedding:
        values = 2 * torch.rand(shape, generator=generator, device="cpu") - 1
        scale = shape[1] ** -0.5
    else:
        values = torch.randn(shape, generator=generator, device="cpu")
        scale = config.init_std
        if is_embedding and config.embedding_std is not None:
            scale = config.embedding_std
    if config.scale_residual_init and name.endswith((".wo.weight", ".down.weight")):
        scale /= (2 * config.layers) ** 0.5
    return values * scale


def retention_start(name: str, uniform: Tensor) -> Tensor:
    """Initial A_log or dt_bias (d,) from uniform numbers (d,) in [0, 1), as in KDA and Mamba-2.

    A ~ U(1, 16), and dt is log-uniform between 0.001 and 0.1. Computed in FP64, because processors
    differ in the last bit of an FP32 logarithm.
    """
    uniform = uniform.double()
    if name == "a_log":
        return (1 + (16 - 1) * uniform).log()
    low, high = math.log(1e-3), math.log(1e-1)
    dt = (low + (high - low) * uniform).exp()
    # The inverse of softplus: softplus(r + dt_bias) = dt if the retention path gives r = 0.
    return dt + torch.log(-torch.expm1(-dt))


def keyed_generator(key: str) -> torch.Generator:
    """A CPU generator whose seed is a hash of the key."""
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def places_of(x: Tensor, documents: Documents | None = None, cache: Cache | None = None) -> Tensor:
    """The position in its text of each token of x, (B, T) or (B, T, d): (T,) or (B, T) int64.

    Raises InputError for documents or a cache that do not fit x, and for both (one text per row).
    """
    check_documents(documents, x[:, None])  # it reads B and T from (B, H, T, D)
    if documents is not None and cache is not None:
        raise InputError("decoding takes no documents; give them or a cache, not both")
    if documents is not None:
        return documents.positions
    if cache is not None:
        places = cache.places(x.shape[1], x.device)
        if cache.uneven and len(places) != len(x):
            raise InputError(
                f"the block has {len(x)} rows and the cache {len(places)}; start a new decode state"
            )
        return places
    return torch.arange(x.shape[1], device=x.device)


def check_tokens(tokens: Tensor, vocabulary: int) -> None:
    """Raise InputError unless tokens are (B, T) ids; the range is checked on a CPU only."""
    kind = tokens.dtype if isinstance(tokens, Tensor) else f"a {type(tokens).__name__}, no tensor"
    if kind not in (torch.int64, torch.int32):
        raise InputError(f"tokens are {kind}; give their ids in int64 or int32")
    if tokens.ndim != 2 or 0 in tokens.shape:
        raise InputError(f"tokens have shape {tuple(tokens.shape)}; give (B, T) with T >= 1")
    if tokens.device.type == "cpu" and type(tokens) is Tensor and not torch.compiler.is_compiling():
        least, most = tokens.min().item(), tokens.max().item()
        if least < 0 or most >= vocabulary:
            raise InputError(
                f"token ids go from {least} to {most} and the model knows 0 to {vocabulary - 1}; "
                "use the tokenizer that it was trained with"
            )
