"""Where each record comes from, and whether what made it has changed since.

Snakemake's own memory of what it made does not survive a clone; a record's origin does.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from relation.data.recipes import BOOKS
from relation.pipeline.campaign import Campaign
from relation.pipeline.hashes import code_hash, golden_hash
from relation.pipeline.jobs import UNREPORTED, Record
from relation.pipeline.places import RULES
from relation.pipeline.uses import uses_of_model
from relation.spec import canonical_hash
from relation.variants import VARIANTS

CURRENT, OLDER, STALE = "current", "older code, same golden losses", "stale"
FRESHNESS = (CURRENT, OLDER, STALE)  # from best to worst
PROVENANCE = (
    "source", "kind", "scale", "variant", "seed", "config_hash", "code_hash", "golden_hash",
    "commit", "device", "versions", "made", "log", "rerun", "freshness", "freshness_reason",
)  # fmt: skip


# What Snakemake's --config leaves as it is: no sign that YAML reads as more than a letter.
_PLAIN = re.compile(r"[\w./~](?:[\w./~+@%=, -]*[\w./~+@%=-])?")


def _as_given(key: str, value: object) -> str:
    """A choice as Snakemake's --config takes it, which reads a value as Python or YAML would."""
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    if key == "seeds" or (_PLAIN.fullmatch(text) and not _is_python(text)):
        return text
    # Quotes at the ends would be stripped; a space outside them keeps them for YAML.
    return f" {json.dumps(text, ensure_ascii=False)} "


def _is_python(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text in ("True", "False")
    return True


def command_for(campaign: Campaign, published: bool = True) -> str:
    """The command that runs a campaign with the choices it was restricted by.

    published: whether shipped records count as done. Where it reads local texts and none are given,
    as of shipped records, it names the corpus of the published records.
    """
    choices = {"campaign": campaign.name, **campaign.restrictions}
    if campaign.corpus is not None:
        choices["corpus"] = campaign.corpus
    elif any(
        spec.source["kind"] == "files" and spec.path is None for spec in campaign.data.values()
    ):
        choices["corpus"] = BOOKS.key
    if not published:
        choices["published"] = "false"
    given = " ".join(
        shlex.quote(f"{key}={_as_given(key, value)}") for key, value in choices.items()
    )
    return f"snakemake --cores all --config {given}"


def freshness(
    origin: Mapping[str, Any], record: Record, base: Mapping[str, Any] | None = None
) -> tuple[str, str]:
    """Whether a record is what this checkout would make again, and why it may not be.

    base: the row of PROVENANCE of what the record rests on; None where that is not there. A record
    is no fresher than its base.
    """
    own, reason = _own_freshness(origin, record)
    if record.rests_on is None or own == STALE:
        return own, reason
    rests_on = f"{record.rests_on.as_posix()}, which it rests on,"
    if base is None:
        return STALE, f"{rests_on} is not there"
    if base["made"] > origin["created"]:
        return STALE, f"{rests_on} was made later"
    if worst((own, base["freshness"])) != own:
        return base["freshness"], f"{rests_on} is no fresher: {base['freshness_reason']}"
    return own, reason


def _own_freshness(origin: Mapping[str, Any], record: Record) -> tuple[str, str]:
    """The same of a record by itself."""
    mismatch = record.job.mismatch(origin)
    if mismatch:
        return STALE, mismatch
    if record.is_probed and not record.probed_alike(origin):
        return STALE, "the run was probed by another configuration"
    golden, here = origin.get("golden_hash"), golden_hash()
    if None not in (golden, here) and golden != here:
        return STALE, f"the golden losses changed: {golden}, now {here}"
    job = record.job
    made_by = {job.stage: (origin["code_hash"], job.code)}
    if record.is_probed:
        made_by["probe"] = (origin["probe_code_hash"], code_hash("probe", job.uses))
    changed = "; ".join(
        f"the code of stage {stage} changed: {code}, now {now}"
        for stage, (code, now) in made_by.items()
        if code != now
    )
    if not changed:
        return CURRENT, ""
    if golden is None:
        return STALE, f"{changed}; which golden losses it was held to is not recorded"
    if here is None:
        return STALE, f"{changed}; the golden losses are not here to compare"
    return OLDER, changed


def run_freshness(made: Mapping[str, Any]) -> str:
    """How fresh a row of RUNS is, of the present configuration, by its code and golden losses."""
    uses = uses_of_model(VARIANTS[made["variant"]].pattern, {made["variant"]: made["backend"]})
    with suppress(LookupError):  # a backend that there no longer is
        if made["code_hash"] == code_hash("training", uses):
            return CURRENT
    return OLDER if made["golden_hash"] == golden_hash() else STALE


# Whose code the records that a report is made from rest on.
_STAGES = ("probe", *dict.fromkeys(RULES[rule].stage for rule in RULES if rule not in UNREPORTED))


def checkout_hash() -> str:
    """A hash of what `freshness` compares records with in this checkout."""
    return canonical_hash([golden_hash(), *(code_hash(stage) for stage in _STAGES)])


def worst(states: Iterable[str]) -> str:
    """The worst of several states of freshness; current where there is none."""
    return max(states, key=FRESHNESS.index, default=CURRENT)


def _log(record: Record) -> str | None:
    """The log of the job that made a record, where it was made here."""
    log = record.job.log
    return log.as_posix() if record.path == record.target and log.exists() else None


def _rerun(record: Record, campaign: Campaign, processes: Sequence[int], published: bool) -> str:
    """The command that makes a record again, and what depends on it unless it was published.

    processes: how many trained its run, in order of change; the last are asked for again.
    """
    everything = command_for(campaign, published)
    target = shlex.quote(record.target.as_posix())
    if record.job.stage == "training" and max(processes[-1:], default=1) > 1:
        resource = "gpu" if campaign.device == "cuda" else "processes"
        everything += f" --set-resources train:{resource}={processes[-1]}"
    if record.path != record.target:
        return f"{everything} -- {target}"
    return f"{everything} -R {target} -- all"


def provenance_row(
    record: Record,
    origin: Mapping[str, Any],
    campaign: Campaign,
    base: Mapping[str, Any] | None = None,
    published: bool = True,
) -> dict:
    """What is behind one record that is there, in the columns PROVENANCE.

    base as in freshness, published as in command_for.
    """
    state, reason = freshness(origin, record, base)
    return {
        "source": record.path.as_posix(),
        "kind": record.kind,
        "scale": record.job.scale,
        "variant": record.job.variant,
        "seed": record.job.seed,
        "config_hash": origin["config_hash"],
        "code_hash": origin["code_hash"],
        "golden_hash": origin.get("golden_hash"),
        "commit": origin["commit"],
        "device": origin["device"],
        "versions": json.dumps(origin["versions"], sort_keys=True),
        "made": origin["created"],
        "log": _log(record),
        "rerun": _rerun(record, campaign, origin.get("processes", ()), published),
        "freshness": state,
        "freshness_reason": reason,
    }
