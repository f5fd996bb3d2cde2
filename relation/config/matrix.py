"""The matrix of a campaign: its corpora, models and runs as specifications."""

from collections.abc import Iterable, Mapping

from relation.code import PROJECT
from relation.errors import InputError
from relation.geometry import FULL, LINEAR, MHA, VARIANTS, ModelConfig, model_values
from relation.spec import DataSpec, RunSpec

# A run's identity holds only the assumptions that its own layers rest on.
_MODEL_ASSUMPTIONS = {
    MHA: (
        *("init_std", "linear_init", "embedding_std", "embedding_multiplier"),
        *("scale_residual_init", "norm_eps"),
    ),
    FULL: (),
    LINEAR: ("retention_input", "retention_a_range", "retention_dt_range"),
}


def data_name(scale: Mapping) -> str:
    """The name of the prepared corpus that a scale reads."""
    return f"{scale['corpus']}-{scale['vocabulary']}"


def _texts(corpus: Mapping, chosen: str | None) -> tuple[str, str | None]:
    """Title and path of the texts that a corpus reads; `chosen` is that of corpus=PATH."""
    if corpus["source"]["kind"] != "files":
        return corpus["title"], None
    if "path" not in corpus:
        return corpus["title"], chosen
    return ("Local texts", chosen) if chosen else (corpus["title"], str(PROJECT / corpus["path"]))


def data_specs(
    campaign: Mapping,
    corpus_path: str | None,
    sequences: int,
    further: Iterable[tuple[str, Mapping]] = (),
) -> dict[str, DataSpec]:
    """Every prepared corpus of a campaign by name; `sequences` windows of it are diagnosed.

    further: scales by name that read another corpus than in the matrix. Raises InputError for a
    corpus that is not defined.
    """
    specs: dict[str, DataSpec] = {}
    for scale_name, scale in (*campaign["scales"].items(), *further):
        if scale["corpus"] not in campaign["corpora"]:
            raise InputError(
                f"config: scale {scale_name} reads corpus {scale['corpus']!r}, which the campaign "
                f"does not define; choose among {', '.join(campaign['corpora'])}"
            )
        corpus = campaign["corpora"][scale["corpus"]]
        title, path = _texts(corpus, corpus_path)
        key = data_name(scale)
        before = specs.get(key)
        specs[key] = DataSpec(
            corpus=scale["corpus"],
            title=title,
            vocabulary=scale["vocabulary"],
            source=corpus["source"],
            train_tokens=corpus.get("train_tokens"),
            validation_tokens=corpus.get("validation_tokens"),
            tokenizer_characters=corpus.get("tokenizer_characters"),
            path=path,
            largest_context=max(scale["context"], before.largest_context if before else 0),
            diagnosed_tokens=max(
                sequences * scale["context"] + 1, before.diagnosed_tokens if before else 0
            ),
        )
    return specs


def assumptions_of(config: Mapping, campaign: Mapping) -> dict:
    """The configuration's assumptions with what the campaign reads differently."""
    return {**config["assumptions"], **campaign.get("assumptions", {})}


def _backbone(scale: Mapping, variant: str) -> dict:
    """The scale's values with what the variant overrides."""
    return {**scale, **scale.get("overrides", {}).get(variant, {})}


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


def model_of(assumptions: Mapping, scale_name: str, scale: Mapping, variant: str) -> ModelConfig:
    """The model of a variant at a scale; raises InputError where there is no such model."""
    b = _backbone(scale, variant)
    letters = {MHA, *VARIANTS[variant].pattern}
    names = {name for letter in letters for name in _MODEL_ASSUMPTIONS[letter]}
    if VARIANTS[variant].givens and VARIANTS[variant].pattern != MHA:
        names.add("givens_first_pairing")
    rest = {name: _resolved(name, assumptions[name], b["d_model"]) for name in names}
    try:
        return ModelConfig.for_variant(
            variant, b["layers"], b["d_model"], b["heads"], b["d_ff"], b["vocabulary"], **rest
        )
    except InputError as error:
        raise InputError(f"config: scale {scale_name}, variant {variant}: {error}") from None


def run_spec(
    config: Mapping,
    name: str,
    scale_name: str,
    variant: str,
    seed: int,
    data: DataSpec,
    *,
    assumed: Mapping | None = None,
    learning_rate_factor: float = 1.0,
    reading: str = "",
) -> RunSpec:
    """The specification of one run; raises InputError where its values contradict each other.

    assumed, learning_rate_factor and reading: of a run that a reading asks for; by default the
    campaign's own assumptions and rate.
    """
    campaign, training = config["campaigns"][name], config["training"]
    assumed = assumptions_of(config, campaign) if assumed is None else assumed
    b = _backbone(campaign["scales"][scale_name], variant)
    tokens = b["micro"] * b["accumulation"] * b["context"]
    if tokens != campaign["tokens_per_update"]:
        raise InputError(
            f"config: scale {scale_name}, variant {variant}: micro {b['micro']} x accumulation "
            f"{b['accumulation']} x context {b['context']} is {tokens} tokens an update, and the "
            f"campaign's tokens_per_update is {campaign['tokens_per_update']}; make them equal"
        )
    if b["warmup_tokens"] > assumed["plateau_fraction"] * b["budget_tokens"]:
        raise InputError(
            f"config: scale {scale_name}: warmup_tokens {b['warmup_tokens']} reach beyond the "
            f"plateau of a budget of {b['budget_tokens']} tokens; lower them"
        )
    model = model_of(assumed, scale_name, campaign["scales"][scale_name], variant)
    overrides = campaign.get("backend_overrides", {}).get(variant, {})
    return RunSpec(
        campaign=name,
        scale=scale_name,
        variant=variant,
        seed=seed,
        model=model_values(model),
        data=data.name,
        data_hash=data.config_hash,
        context=b["context"],
        budget_tokens=b["budget_tokens"],
        warmup_tokens=b["warmup_tokens"],
        tokens_per_update=tokens,
        micro=b["micro"],
        accumulation=b["accumulation"],
        learning_rate=b["learning_rate"] * learning_rate_factor,
        plateau_fraction=assumed["plateau_fraction"],
        betas=list(training["betas"]),
        adam_eps=assumed["adam_eps"],
        weight_decay=training["weight_decay"],
        decay_embedding=assumed["decay_embedding"],
        gradient_clip=training["gradient_clip"],
        last_update=assumed["last_update"],
        precision=campaign["precision"],
        device=campaign["device"],
        compile=campaign["compile"],
        backends={**campaign["backends"], **overrides},
        checkpoint_seconds=training["checkpoint_seconds"],
        checkpoint_tokens=training["checkpoint_tokens"],
        deterministic=training["deterministic"],
        decay_vectors=assumed["decay_vectors"] or None,
        init_key=variant if assumed["paired_weights"] == "separate" and variant != "mha" else None,
        reading=reading,
    )
