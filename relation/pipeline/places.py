"""The files of a campaign, below its folder: what each kind of job writes, and how it is named."""

from dataclasses import dataclass
from pathlib import Path

from relation.spec import RecallSpec, RunSpec, SystemsSpec
from relation.store.files import beside

MODELS_FILE, VERIFICATION_FILE = Path("models.parquet"), Path("verification.parquet")
GRADIENTS_FILE = Path("gradients.parquet")
# Words beside a campaign's records, shown with what is missing of them.
OMISSIONS = "omissions.txt"
RUN_FILES = ("record.parquet", "log.parquet", "probes.parquet")
CHECKPOINT = "model.safetensors"
# The runs of readings, a folder each, and what is gathered of them: a file a kind.
READINGS, READING_KINDS = Path("readings"), ("runs", "losses", "probes", "diagnoses")


@dataclass(frozen=True)
class Rule:
    """A kind of job.

    stage: whose code it rests on; writes: its files by name, as patterns below the campaign's
    folder; log: the same of its log, below logs/ and without its ending.
    """

    stage: str
    writes: dict[str, str]
    log: str


def _of_run(place: str) -> dict[str, str]:
    files = zip(("run", "log", "probes", "model"), (*RUN_FILES, CHECKPOINT), strict=True)
    return {name: f"{place}/{file}" for name, file in files}


def _of_checkpoint(place: str) -> dict[str, str]:
    return {
        "diagnostics": f"{place}.parquet",
        "curves": f"{place}-curves.parquet",
        "maps": f"{place}-maps.parquet",
    }


_RUN, _READING = "{scale}/{variant}/{seed}", "{reading}/{variant}/{seed}"
_PREPARED = {
    "data": "data.parquet",
    "tokenizer": "tokenizer.json",
    "train": "train.bin",
    "validation": "validation.bin",
}
RULES = {
    "prepare": Rule(
        "data",
        {name: f"data/{{dataset}}/{file}" for name, file in _PREPARED.items()},
        "prepare/{dataset}",
    ),
    "inventory": Rule("models", {"models": f"{MODELS_FILE}"}, "inventory"),
    "train": Rule("training", _of_run(f"runs/{_RUN}"), "train/{scale}-{variant}-{seed}"),
    "diagnose": Rule(
        "diagnostics",
        _of_checkpoint(f"diagnostics/{_RUN}"),
        "diagnose/{scale}-{variant}-{seed}",
    ),
    "examine": Rule(
        "examination",
        {name: f"beyond/{_RUN}/{name}.parquet" for name in ("copying", "lengths", "self_use")},
        "examine/{scale}-{variant}-{seed}",
    ),
    "train_reading": Rule(
        "training", _of_run(f"{READINGS}/{_READING}"), "train/{reading}-{variant}-{seed}"
    ),
    "diagnose_reading": Rule(
        "diagnostics",
        _of_checkpoint(f"{READINGS}/{_READING}/diagnostics"),
        "diagnose/{reading}-{variant}-{seed}",
    ),
    "collect": Rule(
        "readings", {kind: f"{READINGS}/{kind}.parquet" for kind in READING_KINDS}, "collect"
    ),
    "measure": Rule(
        "systems",
        {"systems": "systems/{benchmark}/{scale}.parquet"},
        "measure/{benchmark}-{scale}",
    ),
    "recall": Rule("recall", {"recall": "recall/{mixer}.parquet"}, "recall/{mixer}"),
    "verify": Rule("verification", {"verification": f"{VERIFICATION_FILE}"}, "verify"),
    "verify_gradients": Rule("gradients", {"gradients": f"{GRADIENTS_FILE}"}, "verify-gradients"),
}


def run_path(run: RunSpec) -> Path:
    """The folder of a run below its campaign's: runs/<scale>/<variant>/<seed>.

    Of a reading's run: readings/<reading>/<variant>/<seed>.
    """
    rule = RULES["train_reading" if run.reading else "train"]
    return Path(rule.writes["run"].format(**vars(run))).parent


def diagnostics_path(run: RunSpec) -> Path:
    """The diagnostics of a run's checkpoint, below the campaign's folder."""
    rule = RULES["diagnose_reading" if run.reading else "diagnose"]
    return Path(rule.writes["diagnostics"].format(**vars(run)))


def examination_paths(run: RunSpec) -> dict[str, Path]:
    """The records of a checkpoint's examination by name, below the campaign's folder."""
    writes = RULES["examine"].writes.items()
    return {name: Path(file.format(**vars(run))) for name, file in writes}


def with_pictures(diagnostics: Path) -> tuple[Path, Path, Path]:
    """The three records of a checkpoint's diagnostics: metrics, curves and flow maps."""
    return diagnostics, beside(diagnostics, "curves"), beside(diagnostics, "maps")


def systems_path(spec: SystemsSpec) -> Path:
    """A systems benchmark, below the campaign's folder."""
    return Path(RULES["measure"].writes["systems"].format(**vars(spec)))


def recall_path(spec: RecallSpec) -> Path:
    """A mixer's associative recall, below the campaign's folder."""
    return Path(RULES["recall"].writes["recall"].format(**vars(spec)))
