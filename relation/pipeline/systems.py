"""The systems benchmarks of config.yaml (Appendix F): the keys of each, and the sides it measures.

A field of `Systems` is a benchmark: its section says at which scales it measures which sides.
"""

# ruff: noqa: RUF009 (`key` makes a field, not a default)

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any, NamedTuple

from pydantic import Field, StrictBool, StrictStr

from relation.sections import (
    UNIQUE,
    BackendsChanges,
    Count,
    FullBackend,
    MhaBackend,
    Rounds,
    key,
)

Batch = Annotated[
    list[Count],
    Field(
        description="[micro, accumulation], sequences and micro-batches an update",
        min_length=2,
        max_length=2,
    ),
]


# The models whose tokens are timed.
DECODED = ("mha", "full", "linear", "hybrid")


class Side(NamedTuple):
    """What a benchmark measures beside others: a variant on backends.

    context: T; batch: micro and accumulation; position: in the paper's order, where that matters.
    """

    name: str
    variant: str
    backends: dict[str, str]
    context: int
    batch: Iterable[int]
    position: int = 0


@dataclass(frozen=True, kw_only=True)
class Batches:
    """A benchmark whose batch is fixed by scale."""

    batches: dict[str, Batch] = key("Batch by scale")

    @property
    def scales(self) -> list[str]:
        """The scales that it measures at."""
        return list(self.batches)


@dataclass(frozen=True, kw_only=True)
class AtContext(Batches):
    """A benchmark at one context."""

    context: Count


@dataclass(frozen=True, kw_only=True)
class Fixed(AtContext):
    """FlashRelation beside the reference, at one context."""

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        operators = {
            "reference": {"full": "reference"},
            "full": {"full": campaign.systems.flash},
        }
        if campaign.compile:
            operators["reference-compiled"] = {"full": "materialised"}
        batch = self.batches[scale]
        return [Side(name, "full", on, self.context, batch) for name, on in operators.items()]


@dataclass(frozen=True, kw_only=True)
class Matched(Batches):
    """MHA and Full Relation at the scale's own context."""

    peers: Annotated[list[MhaBackend], *UNIQUE] = key(
        "Further backends of MHA that are measured beside the pair"
    )

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        at = (campaign.scales[scale].context, self.batches[scale])
        return [
            Side("mha", "mha", campaign.systems.baseline, *at),
            Side("full", "full", {"full": campaign.systems.flash}, *at),
            *(Side(f"mha-{peer}", "mha", {"mha": peer}, *at) for peer in self.peers),
        ]


@dataclass(frozen=True, kw_only=True)
class LinearSteady(AtContext):
    """Linear Relation at one context."""

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        batch = self.batches[scale]
        return [Side("linear", "linear", campaign.backends, self.context, batch)]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A benchmark over contexts; two at least, so that a power can be fitted."""

    scale: StrictStr
    contexts: list[Count] = key("Contexts T, each a side", min_length=2)

    @property
    def scales(self) -> list[str]:
        """The scale that it measures at."""
        return [self.scale]


@dataclass(frozen=True, kw_only=True)
class LinearLong(Sweep):
    """Linear Relation at ever longer contexts, with as many tokens an update as training has."""

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        return [
            Side(
                f"T={context}",
                "linear",
                campaign.backends,
                context,
                (1, max(1, campaign.tokens_per_update // context)),
                position,
            )
            for position, context in enumerate(self.contexts)
        ]


@dataclass(frozen=True, kw_only=True)
class Complexity(Sweep):
    """The operators' time and memory against T."""

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        operators = (
            ("mha", "mha", campaign.systems.baseline),
            ("full-reference", "full", {"full": "reference"}),
            ("full-flash", "full", {"full": campaign.systems.flash}),
            ("linear", "linear", campaign.backends),
        )
        return [Side(*each, context, (1, 1)) for each in operators for context in self.contexts]


@dataclass(frozen=True, kw_only=True)
class Decode(Sweep):
    """A token of whole models after ever more tokens; no backend of an operator's decodes it."""

    rows: Annotated[list[Count], *UNIQUE] = key("Rows of a batch, each at every context")

    def sides(self, campaign: Any, scale: str) -> list[Side]:
        return [
            Side(f"{variant} T={context} x {rows}", variant, campaign.backends, context, (rows, 1))
            for variant in DECODED
            for context in self.contexts
            for rows in self.rows
        ]


@dataclass(frozen=True, kw_only=True)
class Systems(Rounds):
    """The systems benchmarks (Appendix F)."""

    alone: StrictBool = key(
        "Whether a benchmark takes every core of a CPU or every GPU, so that nothing is trained "
        "beside it"
    )
    baseline: BackendsChanges
    flash: FullBackend = key("The backend measured as FlashRelation")
    fixed: Fixed
    matched: Matched
    linear_steady: LinearSteady
    linear_long: LinearLong
    complexity: Complexity
    decode: Decode

    @property
    def benchmarks(self) -> Iterator[tuple[str, Any]]:
        """Every benchmark by its key: what has sides."""
        found = ((each.name, getattr(self, each.name)) for each in fields(self))
        return ((name, section) for name, section in found if hasattr(section, "sides"))
