"""The variants and the shape of a model. Imports no PyTorch, which keeps planning fast."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, get_args

from relation.errors import InputError, check_among

# The letters of layers, and the operator of each layer's mixer.
MHA, FULL, LINEAR, CALIBRATED = "A", "F", "L", "C"
OPERATORS = {MHA: "mha", FULL: "full", LINEAR: "linear", CALIBRATED: "calibrated"}


@dataclass(frozen=True)
class Variant:
    """A model family: its layers repeat `pattern`, and `changes` sets fields of `ModelConfig`."""

    name: str
    title: str
    pattern: str = FULL
    changes: Mapping[str, Any] = field(default_factory=dict)


# The paper's models; each ablation changes only what it names (D.1); one head has no pair.
_PAPER = (
    Variant("mha", "MHA", MHA),
    Variant("full", "Full Relation"),
    Variant("exchange-only", "Exchange-only transport", changes={"transport_self": False}),
    Variant("raw-x", "Raw-X communication", changes={"raw_information": True}),
    Variant("no-count", "No count calibration", changes={"count_calibration": False}),
    Variant("no-givens", "No Givens mixing", changes={"givens": False}),
    Variant("single-head", "Single head", changes={"heads": 1, "givens": False}),
    Variant("linear", "Linear Relation", LINEAR),
    Variant("hybrid", "Hybrid Relation", "LLLF"),
)
# Arms of the fair comparison. QK-norm: Henry et al. 2020, as RMSNorm with gains (Gemma 3, Qwen3).
# Output gate: Qiu et al. 2025. Null logit: softmax off by one (Miller 2023). mha-self is a
# control for Relation's mechanism: MHA's logits with Relation's count calibration and Self.
_QK, _GATE = {"qk_norm": True}, {"output_gate": True}
_FAIR = (
    Variant("mha-qknorm", "MHA + QK-norm", MHA, _QK),
    Variant("mha-gate", "MHA + gate", MHA, _GATE),
    Variant("mha-qknorm-gate", "MHA + QK-norm + gate", MHA, _QK | _GATE),
    Variant("mha-null", "MHA + null logit", MHA, {"null_logit": True}),
    Variant("mha-self", "MHA + Self and count", CALIBRATED),
    Variant("full-qknorm", "Full Relation + QK-norm", FULL, _QK),
    Variant("full-gate", "Full Relation + gate", FULL, _GATE),
    Variant("full-qknorm-gate", "Full Relation + QK-norm + gate", FULL, _QK | _GATE),
)
_OWN: tuple[Variant, ...] = ()  # add your variants here: docs/extending.md
VARIANTS: dict[str, Variant] = {variant.name: variant for variant in (*_PAPER, *_FAIR, *_OWN)}
PAIRED = ("mha", "full")
ABLATIONS = ("exchange-only", "raw-x", "no-count", "no-givens", "single-head")
ARMS = (*PAIRED, *(variant.name for variant in _FAIR))


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only model (Section 6, Appendix B.1). Raises InputError if invalid.

    layout: one letter per layer: A for MHA, F for Full Relation, L for Linear Relation, C for MHA
        with Relation's count calibration and Self.
    kv_heads: heads of p2 and information. Each serves heads / kv_heads neighbouring heads of p1.
        None: as many as heads.
    qk_norm: RMSNorm of p1 and p2 in every head before RoPE; the heads of a layer share the gains.
        output_gate: multiplies the mixer's output, before W_O, by the sigmoid of a d x d projection
        of the layer's normalised input. null_logit: a zero key and value before MHA's first ones.
    init_std: sd of the normal initial weights. embedding_std: that of the embedding if it differs.
    linear_init: "torch" initialises projections as `nn.Linear` does, uniform within 1/sqrt(fan_in).
    scale_residual_init: divides the initial W_O and W_down by sqrt(2 layers), as in GPT-2.
    embedding_multiplier: multiplies the embeddings that the first block reads.
    """

    vocab_size: int
    d_model: int
    heads: int
    d_ff: int
    layout: str
    tau: float = 2.0
    rope_base: float = 1e4
    norm_eps: float = 1e-6
    lambda_init: float = 0.5
    transport_self: bool = True
    raw_information: bool = False
    count_calibration: bool = True
    givens: bool = True
    init_std: float = 0.02
    scale_residual_init: bool = False
    linear_init: str | None = None
    embedding_std: float | None = None
    embedding_multiplier: float | None = None
    kv_heads: int | None = None
    qk_norm: bool = False
    output_gate: bool = False
    null_logit: bool = False

    def __post_init__(self):
        for option in fields(self):
            check_type(option.name, getattr(self, option.name), option.type)
        for name in ("vocab_size", "d_model", "heads", "d_ff"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        sizes = ("init_std", "embedding_std", "embedding_multiplier")
        for name in ("tau", "rope_base", "norm_eps", *sizes):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}; it must be positive and finite")
        d, heads, shared = self.d_model, self.heads, self.shared_heads
        relates = not set(self.layout).isdisjoint((FULL, CALIBRATED))
        mixes_heads = self.givens and not set(self.layout).isdisjoint((FULL, LINEAR))
        for fits, problem in (
            (self.layout and not set(self.layout) - set(OPERATORS),
             f"layout {self.layout!r} must be letters of {''.join(OPERATORS)}"),
            (d % heads == 0, f"d_model {d} is not divisible by {heads} heads; give a multiple"),
            (self.head_dim % 2 == 0,
             f"head width {self.head_dim} (d_model {d} / {heads} heads) is odd, but RoPE rotates "
             "pairs of channels; make it even"),
            (shared > 0 and heads % shared == 0,
             f"kv_heads is {shared} and heads {heads}; kv_heads must divide heads"),
            (not self.raw_information or shared == heads,
             f"Raw-X needs all {heads} heads of X, not {shared}; leave out kv_heads"),
            (not mixes_heads or shared % 2 == 0,
             f"Givens mixing pairs heads of information, and their number, {shared}, is odd; give "
             "givens=False, or an even number of heads (of kv_heads, if that is set)"),
            (not self.null_logit or MHA in self.layout,
             f"null_logit needs MHA layers, and layout {self.layout!r} has none"),
            (math.isfinite(self.lambda_init),
             f"lambda_init is {self.lambda_init}; it must be finite"),
            (relates or (self.transport_self and self.count_calibration),
             "transport_self and count_calibration are of Full Relation, and layout "
             f"{self.layout!r} has none"),
            (self.linear_init in (None, "torch"),
             f"linear_init is {self.linear_init!r}; give 'torch' or None"),
        ):  # fmt: skip
            if not fits:
                raise InputError(problem)

    @classmethod
    def for_variant(cls, variant: str, layers: int = 0, heads: int = 0, **options) -> "ModelConfig":
        """The model of a named variant; `options` are further fields of ModelConfig.

        heads: of the variants with several heads; Single head has 1. Raises InputError for an
        option that contradicts the variant.
        """
        check_among(variant, VARIANTS, f"unknown variant {variant!r}")
        check_type("layers", layers, int)
        for name in (*options, *VARIANTS[variant].changes):
            check_among(name, ("layers", *cls.__dataclass_fields__), f"a model has no {name!r}")
        title, pattern = VARIANTS[variant].title, VARIANTS[variant].pattern
        if layers < 1 or layers % len(pattern):
            advice = f"give layers, a multiple of {len(pattern)}, not {layers}"
            raise InputError(f"{title} repeats the layers {pattern}; {advice}")
        fixed = {"layout": pattern * (layers // len(pattern)), **VARIANTS[variant].changes}
        for name in options.keys() & fixed.keys():
            if options[name] != fixed[name]:
                problem = f"{title} has {name} {fixed[name]!r}, not {options[name]!r}"
                raise InputError(f"{problem}; leave it out, or give ModelConfig all its fields")
        return cls(**{"heads": heads, **options, **fixed})

    @property
    def layers(self) -> int:
        return len(self.layout)

    @property
    def head_dim(self) -> int:
        """d_h, the width of one head."""
        return self.d_model // self.heads

    @property
    def shared_heads(self) -> int:
        """The number of heads of p2 and of information: kv_heads, or heads if that is None."""
        return self.heads if self.kv_heads is None else self.kv_heads


def backend_names(config: ModelConfig, backends: Mapping[str, str]) -> str:
    """The backends of a model's operators, each once, joined by commas.

    backends: by the operator's name. An operator without a backend is "automatic".
    """
    used = [name for letter, name in OPERATORS.items() if letter in config.layout]
    return ", ".join(dict.fromkeys(backends.get(name, "automatic") for name in used))


def parameter_count(config: ModelConfig) -> int:
    """The number of trained parameters, the tied matrix counted once. Builds no model."""
    d, shared = config.d_model, config.shared_heads * config.head_dim
    total = config.vocab_size * d + d  # embedding and last norm
    for letter in config.layout:
        total += 2 * d + 3 * d * config.d_ff  # two norms, SwiGLU
        total += 2 * d * d + (1 if config.raw_information else 2) * d * shared  # W_1, W_O, W_2, W_I
        total += config.qk_norm * 2 * config.head_dim + config.output_gate * d * d
        if letter in (FULL, LINEAR) and config.givens:
            total += config.shared_heads // 2  # theta
        if letter in (FULL, CALIBRATED):
            total += config.count_calibration  # lambda
        if letter == LINEAR:
            total += d * d + d * config.head_dim + 2 * d  # retention, A_log, dt_bias
    return total


def check_type(name: str, value: Any, kind: Any) -> None:
    """Raise InputError for a value of another type. NumPy numbers are valid; True is no number.

    kind: a type, or a union of types as in a field's annotation.
    """
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    wider = {int: Integral, float: Real}
    for one in kinds:
        if isinstance(value, wider.get(one, one)) and (one is bool or not isinstance(value, bool)):
            return
    named = " or ".join("None" if one is type(None) else one.__name__ for one in kinds)
    raise InputError(f"{name} is {value!r}; give {named}")
