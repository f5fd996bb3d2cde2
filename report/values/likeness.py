"""Where a campaign is the paper's and where it is not: models, budgets and corpora by scale.

Nothing is taken on trust: the configuration that the records were planned by is held against what
the paper prints (Appendix B.1, B.2 and E).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from relation.variants import ABLATIONS, PAIRED, VARIANTS
from report.values.architecture import geometry, tokens, vocab
from report.values.layout import SCALES
from report.values.paper import printed

HYBRID_GEOMETRY = "12/480/8x60/960"
# The hub's data sets behind the names that the paper prints: (path, configuration) each.
CORPORA = {
    "TinyStories": {("roneneldan/TinyStories", None)},
    "SmolLM corpus": {
        ("HuggingFaceTB/smollm-corpus", "cosmopedia-v2"),
        ("HuggingFaceTB/smollm-corpus", "fineweb-edu-dedup"),
    },
}
# The fixed sequences of Appendix B.4 and B.5: how many, and how long for flow and for spectra.
DIAGNOSED = {"sequences": 4, "flow_length": 1024, "rank_length": 512}


def _printed(scale: str, column: str) -> str:
    return printed("app-configs", scale, column).printed


def _printed_geometry(scale: str, variant: str) -> str:
    if variant == "hybrid":
        return HYBRID_GEOMETRY
    printed = _printed(scale, "geometry")
    if not VARIANTS[variant].single_head:
        return printed
    layers, d_model, _, d_ff = printed.split("/")
    return f"{layers}/{d_model}/1x{d_model}/{d_ff}"


def _other_model(model: Mapping[str, Any], budget: bool) -> str:
    """The first thing in which a model of one of the paper's variants is another; or nothing."""
    scale, variant = model["scale"], model["variant"]
    known = [
        ("has", geometry(model), _printed_geometry(scale, variant)),
        ("has a vocabulary of", vocab(model), _printed(scale, "vocab")),
        ("has T =", str(model["context"]), _printed(scale, "context")),
    ]
    if budget:
        known.append(("has a budget of", tokens(model), _printed(scale, "tokens")))
    name = scale if variant == "mha" else f"{scale}/{variant}"
    for words, ours, theirs in known:
        if ours != theirs:
            return f"{name} {words} {ours}, the paper's {theirs}"
    return ""


def _other_corpus(model: Mapping[str, Any]) -> str:
    name = _printed(model["scale"], "data")
    streams = model["source"].get("streams", ())
    if {(stream["path"], stream.get("name")) for stream in streams} == CORPORA[name]:
        return ""
    return f"other texts than the {name.removesuffix(' corpus')} corpus"


def _other_models(scale: str, planned: Sequence[Mapping[str, Any]], budget: bool) -> str:
    if scale not in SCALES:
        return f"the paper has no scale {scale}"
    theirs = [m for m in planned if m["variant"] in (*PAIRED, *ABLATIONS, "hybrid")]
    if not theirs:
        return f"{scale} plans none of the paper's models"
    return next(filter(None, (_other_model(model, budget) for model in theirs)), "")


def _other_corpora(scale: str, planned: Sequence[Mapping[str, Any]]) -> str:
    found = next(filter(None, map(_other_corpus, planned if scale in SCALES else ())), "")
    return found and f"{scale} reads {found}"


def _other_sequences(diagnosed: Mapping[str, int]) -> str:
    if diagnosed == DIAGNOSED:
        return ""
    ours, theirs = (
        "{sequences} sequences of {flow_length} tokens, {rank_length} for spectra".format(**lengths)
        for lengths in (diagnosed, DIAGNOSED)
    )
    return f"checkpoints are diagnosed on {ours}, not {theirs}"


class Likeness:
    """Where a campaign is the paper's and where it is not.

    page: what the campaign says of itself, with ``trained``, a row a model that it plans, and
    ``diagnosed``, what its checkpoints are diagnosed on.
    """

    def __init__(self, page: Mapping[str, Any]) -> None:
        by_scale: dict[str, list[Mapping[str, Any]]] = {}
        for model in page["trained"]:
            by_scale.setdefault(model["scale"], []).append(model)
        self.scales = tuple(by_scale)
        self._models = {
            (scale, budget): _other_models(scale, models, budget)
            for scale, models in by_scale.items()
            for budget in (False, True)
        }
        self.other_sequences = _other_sequences(page["diagnosed"])
        self._corpora = {scale: _other_corpora(scale, rows) for scale, rows in by_scale.items()}

    def other_models(self, scales: Iterable[str], *, budget: bool) -> str:
        """Why the models of some scales are not the paper's; empty where all are.

        Layers, widths, heads, vocabulary and context of every variant that the paper has too;
        with ``budget`` its training tokens as well. A scale that is not planned has none.
        """
        return "; ".join(filter(None, (self._models.get((scale, budget)) for scale in scales)))

    def other_corpora(self, scales: Iterable[str]) -> str:
        """Why the corpora of some scales are not the paper's; empty where all are."""
        return "; ".join(filter(None, map(self._corpora.get, scales)))

    @property
    def differences(self) -> str:
        """Everything in which the campaign is not the paper's; empty where it is."""
        models = self.other_models(self.scales, budget=True)
        found = (models, self.other_corpora(self.scales), self.other_sequences)
        return "; ".join(filter(None, found))
