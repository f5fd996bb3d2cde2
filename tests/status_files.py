"""The files of the tiny campaign in any state, for the tests of `status`."""

from pathlib import Path

import pytest
from conftest import campaign

from relation.data.sources import corpus_fingerprint
from relation.pipeline.ledger import Ledger
from relation.pipeline.places import CHECKPOINT, diagnostics_path, run_path, with_pictures
from relation.pipeline.progress import CampaignStatus, RunStatus, campaign_status
from relation.pipeline.results import Results
from relation.spec import RunSpec
from relation.store.layouts import DATA, FLOW, FLOW_CURVES, FLOW_MAPS, LOG, PROBES, RUN
from relation.store.parquet import write_parquet
from relation.train.folder import resume_key
from relation.train.watch import Watch

Output = pytest.CaptureFixture[str]
NAME = "10M/full/42"
HASHES = {"train": "a" * 64, "validation": "b" * 64}
TOKENS = 128  # an update; five of them, the last partial, are the budget of 600


def every_run() -> tuple[RunSpec, ...]:
    """The campaign's runs as status lists them: the matrix, further pairs, readings."""
    return (*campaign().trained_runs, *campaign().reading_runs)


def run(name: str = NAME) -> RunSpec:
    scale, variant, seed = name.split("/")
    return campaign().run(scale, variant, int(seed))


MADE = "2026-01-02T03:04:05+00:00"


def origin(config_hash: str, **details) -> dict:
    known = {"campaign": "tiny", "config_hash": config_hash, "commit": "unknown", "versions": {}}
    known |= {"device": "cpu", "backends": {"mha": "flash", "full": "tiled"}}
    return known | {"seed": 42, "created": MADE, **details}


def prepare(results: Results) -> None:
    """The records of prepared corpora, their files empty."""
    for data in campaign().data.values():
        rows = [
            dict.fromkeys(DATA.names, 1) | {"split": split, "sha256": digest}
            for split, digest in HASHES.items()
        ]
        rows = [row | {"unigram_entropy": 5.0} for row in rows]
        folder = results.data(data)
        write_parquet(folder / "data.parquet", DATA, rows, origin(data.config_hash))
        for file in ("tokenizer.json", "train.bin", "validation.bin"):
            (folder / file).touch()


def log_row(update: int, rate: float = 1000.0) -> dict:
    return {
        "update": update,
        "tokens": min(TOKENS * update, 600),
        "update_tokens": TOKENS,
        "loss": 6.0 - update / 10,
        "learning_rate": 1e-3,
        "gradient_norm": 1.0,
        "tokens_per_second": rate,
    }


def finish(results: Results, spec: RunSpec, rate: float = 1000.0, hash: str | None = None) -> Path:
    """The records of a finished run, its checkpoint empty."""
    folder = results.folder / run_path(spec)
    values = {name: "x" if RUN.field(name).type == "string" else 1 for name in RUN.names}
    values |= {"scale": spec.scale, "variant": spec.variant, "seed": spec.seed}
    values |= {"tokens_per_second": rate}
    texts = corpus_fingerprint(campaign().data[spec.data].path)
    written = origin(hash or spec.config_hash, data_origin={"corpus_sha256": texts})
    write_parquet(folder / "record.parquet", RUN, [values], written)
    write_parquet(folder / "log.parquet", LOG, [log_row(u) for u in range(1, 6)], written)
    write_parquet(folder / "probes.parquet", PROBES, [], written)
    (folder / CHECKPOINT).touch()
    return folder


def finish_diagnosis(results: Results, spec: RunSpec) -> None:
    """The records of a checkpoint's diagnostics."""
    written = origin(campaign().diagnostics_spec(spec).config_hash)
    paths = with_pictures(results.folder / diagnostics_path(spec))
    for path, layout in zip(paths, (FLOW, FLOW_CURVES, FLOW_MAPS), strict=True):
        write_parquet(path, layout, [], written)


def resume_folder(results: Results, spec: RunSpec) -> Path:
    code = Ledger(results).train(spec).code
    return results.folder / "resume" / resume_key(spec, HASHES, code)


def begin(results: Results, spec: RunSpec, updates: int, saved: int = 0, folder=None) -> Watch:
    """A run in progress after some updates, with a resume state of `saved`; killed if dropped."""
    folder = folder or resume_folder(results, spec)
    folder.mkdir(parents=True, exist_ok=True)
    if saved:
        (folder / f"state-{saved:08d}-00ff.safetensors").touch()
    watch = Watch(folder, spec, {name: [] for name in LOG.names})
    for update in range(1, updates + 1):
        # The first update compiles.
        watch.add(log_row(update, 10.0 if update == 1 else 1000.0))
    return watch


def look(results: Results, steps: bool = False) -> CampaignStatus:
    return campaign_status(campaign(), results, steps)


def found(results: Results, name: str = NAME) -> RunStatus:
    return next(r for r in look(results).runs if r.name == name)


def job_log(results: Results, rule: str, name: str, text: str) -> None:
    path = results.folder / "logs" / rule / f"{name}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
