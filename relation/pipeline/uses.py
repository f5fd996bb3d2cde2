"""The entries of registries that a job uses: its code hash covers no others."""

from collections.abc import Iterable, Mapping
from functools import singledispatch

from relation.registry import tells
from relation.spec import (
    TRUTH,
    DataSpec,
    GradientsSpec,
    RecallSpec,
    RunSpec,
    Spec,
    SystemsSpec,
    VerificationSpec,
)
from relation.variants import ABLATIONS, MHA, MIXERS, PAIRED

# The backends of `relation.nn.Execution`, which a checkpoint is diagnosed with.
DEFINITIONS = {"mha": "reference", "full": "reference", "linear": "recurrent"}
# The variants that the paper's tables have.
PAPERS = (*PAIRED, *ABLATIONS, "linear", "hybrid")
# The forms of Linear Relation that the campaign's own is checked beside.
CHECKED_BESIDE = ("linear/expanded", "linear/chunked")


@tells
@singledispatch
def uses_of(spec: Spec) -> frozenset[str]:
    """What `code_hash` takes as `uses` for the job of a specification."""
    raise TypeError(f"nobody has said what the job of a {type(spec).__name__} uses")


@tells
def uses_of_model(layout: str, backends: Mapping[str, str] = {}) -> frozenset[str]:
    """The same of a model with these layers; backends: by operator, where not the definition."""
    chosen = {**DEFINITIONS, **backends}
    operators = [MIXERS[letter] for letter in layout]
    return frozenset(
        [f"LAYERS/{letter}" for letter in layout]
        + [f"BACKENDS/{operator}/{chosen[operator]}" for operator in operators]
    )


@tells
def uses_of_models(runs: Iterable[RunSpec]) -> frozenset[str]:
    """The same of the inventory of the models of these runs."""
    return frozenset().union(*(uses_of_model(run.model["layout"]) for run in runs))


def uses_of_report(variants: Iterable[str]) -> frozenset[str]:
    """The same of the report of a campaign with these variants: the paper's are in it too."""
    return frozenset(f"VARIANTS/{variant}" for variant in {*PAPERS, *variants})


@uses_of.register
def _(spec: DataSpec) -> frozenset[str]:
    return frozenset([f"SOURCES/{spec.source['kind']}"])


@uses_of.register
def _(spec: RunSpec) -> frozenset[str]:
    start = frozenset() if spec.start is None else uses_of_model(MHA)
    return start | uses_of_model(spec.model["layout"], spec.backends)


@uses_of.register
def _(spec: SystemsSpec) -> frozenset[str]:
    return _of_sides(spec.sides)


@uses_of.register
def _(spec: GradientsSpec) -> frozenset[str]:
    truth = (uses_of_model(side["model"]["layout"], TRUTH) for side in spec.variants)
    return _of_sides(spec.variants).union(*truth)


@uses_of.register
def _(spec: RecallSpec) -> frozenset[str]:
    return uses_of_model(spec.models[0]["layout"], spec.backends)


@uses_of.register
def _(spec: VerificationSpec) -> frozenset[str]:
    checked = (f"full/{spec.backend}", f"linear/{spec.linear}", *CHECKED_BESIDE)
    return frozenset(f"BACKENDS/{key}" for key in checked)


def _of_sides(sides: list[dict]) -> frozenset[str]:
    used = (uses_of_model(side["model"]["layout"], side["backends"]) for side in sides)
    return frozenset().union(*used)
