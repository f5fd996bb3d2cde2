"""The shape of a model: what fixes its parameters, free of PyTorch so that planning stays fast."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from relation.errors import InputError
from relation.registry import Registry

MHA, FULL, LINEAR = "A", "F", "L"
MIXERS = {MHA: "mha", FULL: "full", LINEAR: "linear"}


@dataclass(frozen=True)
class Variant:
    """A model family of the paper; each ablation changes only what it names (Appendix D.1)."""

    name: str
    title: str
    pattern: str = FULL
    transport_self: bool = True
    raw_information: bool = False
    count_calibration: bool = True
    givens: bool = True
    single_head: bool = False

    @property
    def key(self) -> str:
        return self.name


VARIANTS: Registry[str, Variant] = Registry(
    Variant("mha", "MHA", pattern=MHA),
    Variant("full", "Full Relation"),
    Variant("exchange-only", "Exchange-only transport", transport_self=False),
    Variant("raw-x", "Raw-X communication", raw_information=True),
    Variant("no-count", "No count calibration", count_calibration=False),
    Variant("no-givens", "No Givens mixing", givens=False),
    Variant("single-head", "Single head", single_head=True, givens=False),
    Variant("linear", "Linear Relation", pattern=LINEAR),
    Variant("hybrid", "Hybrid Relation", pattern="LLLF"),
)
PAIRED = ("mha", "full")
ABLATIONS = ("exchange-only", "raw-x", "no-count", "no-givens", "single-head")


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only model (Section 6, Appendix B.1).

    `layout` has one letter a layer: A for MHA, F for Full Relation, L for Linear Relation.
    Initial weights are normal with standard deviation `init_std`. With `linear_init` "torch" the
    projections start as `nn.Linear` does, uniform within 1/sqrt(fan_in); `embedding_std` gives the
    embedding its own deviation; `embedding_multiplier` scales what the first block reads. The
    second coordinate and information have `kv_heads` heads, each for as many neighbouring heads of
    the first; None gives every head its own.
    Raises InputError where no such model exists.
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
    givens_first_pairing: str = "A"
    retention_input: str = "normalised"
    retention_a_range: tuple[float, float] = (1.0, 16.0)
    retention_dt_range: tuple[float, float] = (1e-3, 1e-1)
    init_std: float = 0.02
    scale_residual_init: bool = False
    linear_init: str | None = None
    embedding_std: float | None = None
    embedding_multiplier: float | None = None
    kv_heads: int | None = None

    def __post_init__(self):
        for name in ("vocab_size", "d_model", "heads", "d_ff"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not self.layout or set(self.layout) - set(MIXERS):
            raise InputError(f"layout {self.layout!r} must be letters of {''.join(MIXERS)}")
        if self.d_model % self.heads:
            raise InputError(
                f"d_model {self.d_model} is not divisible by {self.heads} heads; "
                "choose a multiple of the number of heads"
            )
        if self.head_dim % 2:
            raise InputError(
                f"head width {self.head_dim} (d_model {self.d_model} / {self.heads} heads) is odd "
                "and RoPE rotates pairs of channels; make it even"
            )
        if self.shared_heads < 1 or self.heads % self.shared_heads:
            raise InputError(
                f"kv_heads is {self.kv_heads} and heads {self.heads}; give a divisor of the heads"
            )
        if self.raw_information and self.shared_heads < self.heads:
            raise InputError(
                f"Raw-X transports all {self.heads} heads of X, not {self.kv_heads}; leave out "
                "kv_heads"
            )
        if self.mixes_heads and self.shared_heads % 2:
            raise InputError(
                f"Givens mixing pairs heads of information, and {self.shared_heads} are odd in "
                "number; give an even number, or givens=False"
            )
        if not 0 < self.tau < math.inf:
            raise InputError(f"tau is {self.tau}; the Self temperature must be positive")
        for name, choices in (
            ("givens_first_pairing", ("A", "B")),
            ("retention_input", ("normalised", "residual")),
            ("linear_init", (None, "torch")),
        ):
            if getattr(self, name) not in choices:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; choose one of: "
                    f"{', '.join(map(str, choices))}"
                )

    @classmethod
    def for_variant(
        cls, variant: str, layers: int, d_model: int, heads: int, d_ff: int, vocab_size: int, **rest
    ) -> "ModelConfig":
        """The model of a named variant on a backbone; `rest` are further fields."""
        if variant not in VARIANTS:
            raise InputError(f"unknown variant {variant!r}; choose one of: {', '.join(VARIANTS)}")
        v = VARIANTS[variant]
        if layers < 1 or layers % len(v.pattern):
            raise InputError(
                f"{v.title} repeats the layers {v.pattern}; {layers} layers is not a multiple of "
                f"{len(v.pattern)}"
            )
        return cls(
            vocab_size=vocab_size,
            d_model=d_model,
            heads=1 if v.single_head else heads,
            d_ff=d_ff,
            layout=v.pattern * (layers // len(v.pattern)),
            transport_self=v.transport_self,
            raw_information=v.raw_information,
            count_calibration=v.count_calibration,
            givens=v.givens,
            **rest,
        )

    @property
    def layers(self) -> int:
        return len(self.layout)

    @property
    def head_dim(self) -> int:
        """d_h, the width of one head."""
        return self.d_model // self.heads

    @property
    def shared_heads(self) -> int:
        """Heads of the second coordinate and of information; `heads`, unless they are shared."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def mixes_heads(self) -> bool:
        """Whether some layer rotates information heads by Givens angles."""
        return self.givens and any(letter != MHA for letter in self.layout)


def model_values(config: ModelConfig) -> dict:
    """A model's fields as JSON holds them.

    Options that are off (None) are left out, so that a new option changes no older model's hash.
    """
    values = {k: v for k, v in asdict(config).items() if v is not None}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def model_config(values: Mapping) -> ModelConfig:
    """The inverse of `model_values`. Raises InputError or TypeError for values of no model."""
    return ModelConfig(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
