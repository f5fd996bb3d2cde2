"""What must hold before a campaign's first job starts, so that a fault is told at once."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import Container, Iterable
from pathlib import Path

from relation.data.recipes import RECIPES, make_corpus
from relation.data.sources import corpus_fingerprint, text_files
from relation.errors import InputError
from relation.pipeline.campaign import Campaign
from relation.pipeline.jobs import DONE, STALE
from relation.pipeline.ledger import Ledger
from relation.pipeline.results import Results
from relation.spec import DataSpec
from relation.store.files import write_text
from relation.train.watch import require_tensorboard

_SECONDS_OF_SKEW = 5.0  # between this machine's clock and a file server's
_FEW_BYTES = 8 << 20  # of texts that can be looked at whole
_LONGEST_NAME = 254  # of a file in Snakemake's memory; of longer ones it makes folders


def check(
    campaign: Campaign,
    datasets: Iterable[str],
    needs_gpu: bool,
    inputs: Iterable[str] = (),
    replaced: Container[str] = (),
) -> None:
    """Raise InputError where a corpus to be prepared, TensorBoard or the jobs' GPU is not there.

    datasets: names of the corpora to be prepared; replaced: those that are there, of other texts or
    settings, which Snakemake deletes before it prepares them again: a small corpus that would then
    be refused is refused here. needs_gpu: whether jobs will use this machine's GPU; inputs: files
    that jobs read. Snakemake deletes what a job made from a file that is dated after it, so one
    dated in the future is refused.
    """
    latest = time.time() + _SECONDS_OF_SKEW
    for path in map(Path, inputs):
        if path.exists() and path.stat().st_mtime > latest:
            raise InputError(
                f"{path} is dated in the future: the clock was set back; set it right or `touch` "
                "that file"
            )
    if campaign.tensorboard:
        require_tensorboard()
    for name in datasets:
        _check_texts(campaign.data[name], whole=name in replaced)
    if needs_gpu:
        import torch

        if not torch.cuda.is_available():
            raise InputError(
                f"campaign {campaign.name} trains and measures on a CUDA GPU and PyTorch sees none "
                "here; run it on a machine with one, or choose campaign=smoke"
            )


def _check_texts(spec: DataSpec, whole: bool) -> None:
    """Raise InputError where local texts are missing or, if few are looked at `whole`, too few."""
    if spec.source["kind"] == "files":
        files = [file for split in text_files(spec.path).values() for file in split]
        if whole and sum(file.stat().st_size for file in files) <= _FEW_BYTES:
            from relation.data.prepare import check_few_texts

            check_few_texts(spec)


def check_unprepared(results: Results) -> None:
    """Raise InputError where texts of the user's are too few for a corpus still to be prepared."""
    campaign, ledger = results.campaign, Ledger(results)
    for spec in campaign.data.values():
        own = campaign.corpus is not None and campaign.corpus not in RECIPES
        if own and ledger.recorded(ledger.prepare(spec)).name != DONE:
            _check_texts(spec, whole=True)


def make_chosen_corpus(campaign: Campaign) -> None:
    """Make the corpus that `corpus` names by a recipe, unless it is there.

    Raises InputError and RunError as `make_corpus`.
    """
    if campaign.corpus in RECIPES:
        make_corpus(RECIPES[campaign.corpus])


def check_corpus(campaign: Campaign) -> None:
    """Raise InputError where the local texts that `corpus` names are missing or unreadable.

    A recipe's corpus may be missing: it is made before it is read.
    """
    if campaign.corpus is not None and campaign.corpus not in RECIPES:
        text_files(campaign.corpus)
    for spec in campaign.data.values():
        corpus_fingerprint(spec.path)


def check_memory(ledger: Ledger, memory: Path = Path(".snakemake/metadata")) -> None:
    """Raise InputError where results are stale and Snakemake cannot know it.

    It knows what a file was made with where it made it. A copied folder may lack that memory, and
    Snakemake goes by dates there: what other texts or settings made would pass as current.
    """
    own = ((next(iter(job.writes.values())), job) for job in ledger.jobs)
    stale = [(p, job) for p, job in own if p.exists() and ledger.state(job).name == STALE]
    if stale and not any(_remembered(path, memory) for path, _ in stale):
        path, job = stale[0]
        folder = ledger.results.folder
        raise InputError(
            f"{len(stale)} results in {folder} cannot stay (first: {path}, "
            f"{ledger.state(job).reason}), and Snakemake's memory of them, .snakemake/, is gone; "
            f"delete {folder} to make it anew, or give the settings and texts that made it"
        )


def _remembered(path: Path, memory: Path) -> bool:
    """Whether Snakemake knows how it made a file; the names in its memory are its own."""
    name = urlsafe_b64encode(path.as_posix().encode()).decode()
    return len(name) > _LONGEST_NAME or (memory / name).exists()


def write_started_with(campaign: Campaign, results: Results) -> None:
    """Write the configuration that jobs read, results/<campaign>/campaign.json.

    Raises InputError where nothing can be written there.
    """
    started_with = {
        **campaign.settings,
        "tensorboard": campaign.tensorboard,
        "runs_per_gpu": campaign.runs_per_gpu if campaign.matrix_shares else None,
        "published": results.published,
    }
    try:
        write_text(results.started_with, json.dumps(started_with, indent=2))
    except OSError as error:
        raise InputError(
            f"cannot write to {results.folder} ({error.strerror}); mend that and start again"
        ) from None
