"""What a campaign lacks, and why: left out, not run, failed, out of memory."""

from collections.abc import Iterator

from relation.errors import InputError
from relation.pipeline.campaign import LEFT_OUT, READINGS_ALONE, Campaign
from relation.pipeline.jobs import Record, failure
from relation.pipeline.places import RULES
from relation.variants import PAIRED

MISSING = ("kind", "scale", "variant", "seed", "status", "reason")
NOT_RUN, FAILED, OOM = "not run", "failed", "oom"
# How the reason begins of what no job has tried yet; its file follows.
NOT_THERE = "there is no "
# How it ends of what only another training run can give.
UNSHIPPED = "checkpoints are not shipped"
_OUT_OF_MEMORY = ("out of memory", "OutOfMemoryError")
# The records of an examination, which its job writes together.
EXAMINED = tuple(RULES["examine"].writes)
# What a record's absence is called in the frames that it would have filled.
_KINDS = {
    "log": "run",
    "diagnostics": "flow",
    "further log": "further run",
    "further probes": "further run",
    "converted log": "converted run",
    "converted probes": "converted run",
}


def kind_of(benchmark: str) -> str:
    """What a systems benchmark's rows are: a record of its own layout, or of throughput."""
    return benchmark if benchmark in ("complexity", "decode") else "throughput"


def _gap(kind: str, scale: str, variant: str, seed: int | None, status: str, reason: str) -> dict:
    seed = -1 if seed is None else seed
    return dict(zip(MISSING, (kind, scale, variant, seed, status, reason), strict=True))


def left_out(campaign: Campaign) -> Iterator[dict]:
    """What the campaign's restrictions leave out of the whole matrix."""
    for run in campaign.omitted:
        kinds = ["run"]
        kinds += ["flow"] if run.variant in PAIRED else []
        kinds += EXAMINED if campaign.is_examined(run) else []
        for kind in kinds:
            yield _gap(kind, run.scale, run.variant, run.seed, NOT_RUN, run.reason)
    chosen = " ".join(f"{key}={value}" for key, value in campaign.restrictions.items())
    reason = f"{LEFT_OUT}{chosen or READINGS_ALONE}"
    beyond = {
        "further run": (campaign.planned_further, campaign.further_runs),
        "converted run": (campaign.planned_converted, campaign.converted_runs),
    }
    for kind, (planned, done) in beyond.items():
        for run in planned:
            if run not in done:
                key = (run.scale, run.variant, run.seed)
                yield _gap(kind, *key, NOT_RUN, reason)
    for spec in campaign.planned_systems:
        if spec not in campaign.systems:
            kind = kind_of(spec.benchmark)
            yield _gap(kind, spec.scale, spec.benchmark, None, NOT_RUN, reason)
    for spec in campaign.planned_recall:
        if spec not in campaign.recall:
            yield _gap("recall", "", spec.mixer, None, NOT_RUN, reason)


def unpublished(record: Record) -> dict:
    """Diagnostics, or an examination, of a published run that was published without them."""
    made = "diagnostics" if record.job.rule == "diagnose" else "an examination"
    reason = f"the run was published without {made} and {UNSHIPPED}"
    return _gap(*_key(record), NOT_RUN, reason)


def not_there(record: Record, error: InputError) -> dict:
    """A record that is absent or unreadable; the log of its job may say why."""
    if record.path.exists():
        return _gap(*_key(record), FAILED, str(error))
    reason = failure(record.job.log)
    if reason is None:
        return _gap(*_key(record), NOT_RUN, f"{NOT_THERE}{record.path.as_posix()}")
    status = OOM if any(words in reason for words in _OUT_OF_MEMORY) else FAILED
    return _gap(*_key(record), status, reason)


def _key(record: Record) -> tuple[str, str, str, int | None]:
    job = record.job
    kind = (
        kind_of(job.variant) if record.kind == "systems" else _KINDS.get(record.kind, record.kind)
    )
    return kind, job.scale, job.variant, job.seed
