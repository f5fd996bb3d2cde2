"""What a report says of a campaign beside its numbers: models, texts, readings, commands."""

from collections.abc import Iterable
from pathlib import Path

from relation.data.recipes import BOOKS
from relation.data.sources import text_files
from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.places import OMISSIONS, run_path
from relation.pipeline.provenance import command_for
from relation.pipeline.results import Results, texts_of
from relation.spec import DataSpec


def _origins(origins: Iterable[dict]) -> dict:
    """The commits and versions behind a campaign's records; several where they differ."""
    commits, versions = [], {}
    for origin in origins:
        commits.append(origin["commit"])
        for package, version in origin["versions"].items():
            versions.setdefault(package, []).append(version)
    return {
        "commit": ", ".join(dict.fromkeys(commits)),
        "versions": {name: " and ".join(dict.fromkeys(v)) for name, v in versions.items()},
    }


_SHAPE = ("layers", "d_model", "heads", "head_dim", "d_ff")
_LOOKS = ("probes", "probe_sequences", "validations", "validation_tokens")


def trained_models(campaign: Campaign) -> list[dict]:
    """What a campaign trains, a row a scale and variant: model, window, budget and corpus."""
    rows = []
    for run, _ in campaign.inventory():
        model = run.model_config()
        rows.append(
            {
                "scale": run.scale,
                "variant": run.variant,
                **{name: getattr(model, name) for name in _SHAPE},
                "vocab": model.vocab_size,
                "context": run.context,
                "budget_tokens": run.budget_tokens,
                "source": campaign.data[run.data].source,
            }
        )
    return rows


# The reading that says where documents come from, and how validation is split off.
_SOURCES = "corpora.*.source"


def _kind(campaign: Campaign, spec: DataSpec, made: set[str]) -> str:
    """A corpus's kind of source; "shipped" where its texts are part of the project.

    made: fingerprints of the texts behind the records. "recipe" where all are those of the books,
    which `corpus=books` makes.
    """
    if spec.path and campaign.corpus is None:
        return "shipped"
    kind = spec.source["kind"]
    return "recipe" if kind == "files" and made == {BOOKS.fingerprint} else kind


def _held_out(path: str | None, modulus: int) -> str:
    """How the validation split of local texts came about; both ways where they are not at hand."""
    by_hash = f"documents whose SHA-256 is 0 modulo {modulus}"
    if path is None or not Path(path).exists():
        return (
            f"Validation was the files named validation* where the texts had any, else {by_hash}; "
            "the texts are not at hand to tell"
        )
    own = len(text_files(path)["validation"])
    if own:
        files = "file" if own == 1 else "files"
        return (
            f"Validation is the corpus’s own, {own} {files} named validation*; validation_modulus "
            "is not used"
        )
    return f"Validation is the {by_hash}; no file is named validation*"


def _assumptions(campaign: Campaign) -> list[dict]:
    """The campaign's readings; that of local texts with what holds for those given."""
    told = dict.fromkeys(
        f". {_held_out(spec.path, spec.source['validation_modulus'])}"
        for spec in campaign.data.values()
        if spec.source["kind"] == "files"
    )
    return [
        {**reading, "value": "".join((reading["value"], *told))}
        if reading["name"] == _SOURCES
        else dict(reading)
        for reading in campaign.assumptions
    ]


def _omissions(results: Results) -> str:
    """How it came about which runs are there, in the words that lie beside them; or nothing."""
    path = results.folder / OMISSIONS
    if not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8; write it anew") from None


def _further_seeds(campaign: Campaign) -> dict[str, list[int]]:
    """The seeds of the planned pairs beyond the matrix, by scale."""
    found: dict[str, dict[int, None]] = {}
    for run in campaign.planned_further:
        found.setdefault(run.scale, {})[run.seed] = None
    return {scale: list(seeds) for scale, seeds in found.items()}


def campaign_page(results: Results, devices: Iterable[str], origins: Iterable[dict]) -> dict:
    """What the pages say of a campaign beside its numbers, as plain values.

    devices and origins: of the records that are there. Raises InputError where the words on what is
    left out are not UTF-8.
    """
    campaign, origins = results.campaign, list(origins)
    made = set(filter(None, map(texts_of, origins)))
    kinds = {spec.name: _kind(campaign, spec, made) for spec in campaign.data.values()}
    of_recipe = set(kinds.values()) == {"recipe"}
    everything = command_for(campaign, results.published)
    commands = {"Everything": everything}
    if campaign.trained_runs:
        record = (
            results.own_folder / run_path(campaign.trained_runs[0]) / "record.parquet"
        ).as_posix()
        again = f"{everything} -R {record} -- all"
        commands["One seed of one variant, and what depends on it"] = again
    elif campaign.readings:
        again = f"{command_for(campaign, False)} readings={campaign.readings[0].name}"
        commands["One reading, nothing shipped counted"] = again
    return {
        "campaign": campaign.name,
        "title": campaign.title,
        "description": campaign.description,
        "notice": campaign.notice,
        "texts": f"{BOOKS.books} public-domain books" if of_recipe else "",
        "omissions": _omissions(results),
        "trained": trained_models(campaign),
        "diagnosed": {
            name: campaign.diagnostics[name] for name in ("sequences", "flow_length", "rank_length")
        },
        "systems": {
            "precision": sorted({spec.precision for spec in campaign.planned_systems}),
            "flash": campaign.verification.backend,
        },
        "devices": sorted(set(devices)),
        "seeds": list(campaign.seeds),
        "further_seeds": _further_seeds(campaign),
        "reading_runs": [[run.scale, run.variant] for run in campaign.reading_runs],
        "corpora": [
            {"title": spec.title, "kind": kinds[spec.name]} for spec in campaign.data.values()
        ],
        "scales": list(campaign.scales),
        **{name: campaign.diagnostics[name] for name in _LOOKS},
        "efficiency_window": campaign.efficiency_window,
        "restrictions": {k: str(v) for k, v in campaign.restrictions.items()},
        "assumptions": _assumptions(campaign),
        "origin": _origins(origins),
        "commands": commands,
    }
