"""The matrix of a campaign: its corpora, models and runs as specifications."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from relation.data.recipes import texts_path
from relation.errors import InputError
from relation.pipeline.hashes import PROJECT
from relation.pipeline.sections import (
    Assumptions,
    CampaignSection,
    Configuration,
    Corpus,
    Scale,
)
from relation.sections import (
    GPU_ALONE,
    WITHOUT_DOCUMENTS,
    ExecutionSection,
    Optimisation,
    Schedule,
    Training,
)
from relation.spec import DataSpec, RunSpec
from relation.variants import MIXERS, VARIANTS, ModelConfig, model_values


def taken(section: type, values: Any) -> dict:
    """The fields of a section, for a specification that takes it whole."""
    return {field.name: getattr(values, field.name) for field in fields(section)}


def _texts(corpus: Corpus, chosen: str | None) -> tuple[str, str | None]:
    """Title and path of the texts that a corpus reads; `chosen` is what corpus= gives."""
    chosen = texts_path(chosen)
    if corpus.source["kind"] != "files":
        return corpus.title, None
    if corpus.path is None:
        return corpus.title, chosen
    return ("Local texts", chosen) if chosen else (corpus.title, str(PROJECT / corpus.path))


# Deviations and multipliers that depend on the width d, by the names the configuration gives them.
_OF_WIDTH = {
    "1/sqrt(d)": lambda d: d**-0.5,
    "sqrt(2/(5d))": lambda d: (2 / (5 * d)) ** 0.5,
    "sqrt(d)": lambda d: d**0.5,
}


def _resolved(name: str, value: object, d_model: int) -> object:
    """An assumption as a model's field: a rule of the width as a number, an option off as None."""
    if (name, value) == ("linear_init", "normal"):
        return None
    return _OF_WIDTH[value](d_model) if isinstance(value, str) and value in _OF_WIDTH else value


def _rests_on(variant: str) -> list[str]:
    """The assumptions that a variant's layers rest on: a run's identity holds no others."""
    letters, without = {"*", *VARIANTS[variant].pattern}, set()
    if not VARIANTS[variant].givens:
        without.add("givens_first_pairing")
    return [
        each.name
        for each in fields(Assumptions)
        if letters & set(each.metadata["layers"]) and each.name not in without
    ]


def _used(variant: str, backends: Mapping[str, str]) -> list[tuple[str, str]]:
    """Operator and backend of a variant's layers."""
    operators = dict.fromkeys(MIXERS[letter] for letter in VARIANTS[variant].pattern)
    return [(operator, backends[operator]) for operator in operators]


def _check_documents(place: str, variant: str, backends: Mapping[str, str]) -> None:
    for operator, backend in _used(variant, backends):
        if (operator, backend) in WITHOUT_DOCUMENTS:
            raise InputError(
                f"{place}: document_mask is documents, which the backend {backend!r} of "
                f"{operator} cannot keep apart; name another under backends"
            )


def _check_cpu(place: str, variant: str, backends: Mapping[str, str]) -> None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    for operator, backend in _used(variant, backends):
        if (operator, backend) in GPU_ALONE and not (interpreted and backend == "flash"):
            raise InputError(
                f"{place}: the backend {backend!r} of {operator} needs a CUDA GPU, and the "
                "campaign's device is cpu; name another under backends"
            )


@dataclass(frozen=True)
class Matrix:
    """Builds the models and runs of one campaign; every error names the place to change.

    Unless `assumed` says otherwise, the assumptions are the campaign's own.
    """

    config: Configuration

    @property
    def name(self) -> str:
        return self.config.campaign

    @property
    def campaign(self) -> CampaignSection:
        return self.config.campaigns[self.name]

    @property
    def assumptions(self) -> Assumptions:
        return replace(self.config.assumptions, **self.campaign.assumptions)

    def backends(self, variant: str) -> dict:
        """The backends that a variant runs on, by operator."""
        return {**self.campaign.backends, **self.campaign.backend_overrides.get(variant, {})}

    def data(self, sequences: int, further: Iterable[Scale] = ()) -> dict[str, DataSpec]:
        """Every prepared corpus by name; `sequences` windows of it are diagnosed.

        further: scales with another corpus than in the matrix. Raises InputError for a corpus that
        is not defined.
        """
        campaign, specs = self.campaign, {}
        for scale in (*campaign.scales.values(), *further):
            if scale.corpus not in campaign.corpora:
                raise InputError(
                    f"config: campaigns.{self.name}.scales reads corpus {scale.corpus!r}, which "
                    f"the campaign does not define; choose among {', '.join(campaign.corpora)}"
                )
            corpus = campaign.corpora[scale.corpus]
            title, path = _texts(corpus, self.config.corpus)
            before = specs.get(scale.data)
            specs[scale.data] = DataSpec(
                corpus=scale.corpus,
                title=title,
                vocabulary=scale.vocabulary,
                source=corpus.source,
                train_tokens=corpus.train_tokens,
                validation_tokens=corpus.validation_tokens,
                tokenizer_characters=corpus.tokenizer_characters,
                path=path,
                largest_context=max(scale.context, before.largest_context if before else 0),
                diagnosed_tokens=max(
                    sequences * scale.context + 1, before.diagnosed_tokens if before else 0
                ),
            )
        return specs

    def model(
        self, scale_name: str, variant: str, assumed: Assumptions | None = None
    ) -> ModelConfig:
        """The model of a variant at a scale; raises InputError where there is no such model."""
        assumed = assumed or self.assumptions
        b = self.campaign.scales[scale_name].of(variant)
        rest = {n: _resolved(n, getattr(assumed, n), b.d_model) for n in _rests_on(variant)}
        try:
            return ModelConfig.for_variant(
                variant, b.layers, b.d_model, b.heads, b.d_ff, b.vocabulary, **rest
            )
        except InputError as error:
            raise InputError(f"config: scale {scale_name}, variant {variant}: {error}") from None

    def run(
        self,
        scale_name: str,
        variant: str,
        seed: int,
        data: DataSpec,
        *,
        assumed: Assumptions | None = None,
        learning_rate_factor: float = 1.0,
        backends: Mapping[str, str] | None = None,
        reading: str = "",
    ) -> RunSpec:
        """One run; raises InputError where its values contradict each other.

        assumed, learning_rate_factor, backends and reading: of a run that a reading asks for.
        """
        campaign, assumed = self.campaign, assumed or self.assumptions
        b = campaign.scales[scale_name].of(variant)
        tokens = b.micro * b.accumulation * b.context
        if tokens != campaign.tokens_per_update:
            raise InputError(
                f"config: scale {scale_name}, variant {variant}: micro {b.micro} x accumulation "
                f"{b.accumulation} x context {b.context} is {tokens} tokens an update, and the "
                f"campaign's tokens_per_update is {campaign.tokens_per_update}; make them equal"
            )
        if b.warmup_tokens > assumed.plateau_fraction * b.budget_tokens:
            raise InputError(
                f"config: scale {scale_name}: warmup_tokens {b.warmup_tokens} reach beyond the "
                f"plateau of a budget of {b.budget_tokens} tokens; lower them"
            )
        separate = assumed.paired_weights == "separate" and variant != "mha"
        sections = {
            **taken(Schedule, b),
            **taken(Optimisation, assumed),
            **taken(Training, self.config.training),
            **taken(ExecutionSection, campaign),
        }
        backends = {**self.backends(variant), **(backends or {})}
        place = f"config: scale {scale_name}, variant {variant}"
        if assumed.document_mask == "documents":
            _check_documents(place, variant, backends)
        if campaign.device == "cpu":
            _check_cpu(place, variant, backends)
        changed = {
            "learning_rate": b.learning_rate * learning_rate_factor,
            "decay_vectors": assumed.decay_vectors or None,
            "backends": backends,
        }
        return RunSpec(
            campaign=self.name,
            scale=scale_name,
            variant=variant,
            seed=seed,
            model=model_values(self.model(scale_name, variant, assumed)),
            data=data.name,
            data_hash=data.config_hash,
            tokens_per_update=tokens,
            init_key=variant if separate else None,
            document_mask=None if assumed.document_mask == "none" else assumed.document_mask,
            reading=reading,
            **(sections | changed),
        )

    def optimizer(self) -> dict:
        """What a benchmark's optimiser is, but for its rate."""
        training, assumed = self.config.training, self.assumptions
        return {
            "betas": training.betas,
            "eps": assumed.adam_eps,
            "weight_decay": training.weight_decay,
            "decay_embedding": assumed.decay_embedding,
            "gradient_clip": training.gradient_clip,
            **({"decay_vectors": True} if assumed.decay_vectors else {}),
        }
