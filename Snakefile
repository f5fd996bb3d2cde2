"""The reproduction as one DAG: data, runs, measurements, report.

`snakemake --cores all` makes the report of the campaign that config.yaml chooses. A job runs again
if the hash of its specification or an input changed, or if its record is missing. An edit of the
report's code makes only the report again. Other edits of code repeat no job.
"""

import sys
from os import environ
from pathlib import Path
from re import escape
from time import time

PROJECT = Path(workflow.basedir)
sys.path.insert(0, str(PROJECT))

from relation import records
from relation.config import read
from relation.errors import InputError, RelationError
from relation.plan import load


configfile: str(PROJECT / "config.yaml")


try:
    # `corpus=` is often an empty variable of the shell; Snakemake would read it as null, a default.
    for key, value in workflow.config_settings.config.items():
        if value is None:
            raise InputError(f"{key}= has no value; give one, or leave it out")
    read(PROJECT / "config.yaml")  # refuses a key that occurs twice; Snakemake takes the last one
    CAMPAIGN = load(config)
    # The path of every record to make. Records in results/published are left out.
    PLANNED = list(CAMPAIGN.files())
    # Corpora that are prepared as planned. A damaged record ends the call with a one-line error.
    READY = [
        name
        for name, data in CAMPAIGN.data.items()
        if records.is_made(CAMPAIGN.folder / "data" / name / "data.parquet", data.hash)
    ]
except InputError as error:
    sys.exit(f"error: {error}")
FOLDER = CAMPAIGN.folder.as_posix()
CONFIG = CAMPAIGN.resolved_file.as_posix()  # jobs read this copy of the configuration
# Snakemake does not count GPUs. This limit allows `runs_per_gpu` jobs per GPU, one by default.
ON_GPU = CAMPAIGN.device == "cuda"
ON_CLUSTER = bool(workflow.resource_settings.default_resources)  # set by a cluster's profile
if "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", CAMPAIGN.gpu_jobs())
BIN = str(Path(sys.executable).parent)
PYTHONPATH = ":".join(filter(None, (str(PROJECT), environ.get("PYTHONPATH"))))
shell.prefix(f"export PATH={BIN!r}:$PATH PYTHONPATH={PYTHONPATH!r}; ")


def one_of(names):
    """A pattern that matches only these names, so that no rule makes a misspelt file."""
    return "|".join(escape(str(name)) for name in dict.fromkeys(names)) or "(?!)"


wildcard_constraints:
    data=one_of(CAMPAIGN.data),
    scale=one_of(CAMPAIGN.matrix.section.scales),
    variation=one_of(CAMPAIGN.variations),
    variant=one_of(run.variant for run in CAMPAIGN.planned),
    seed=one_of(run.seed for run in CAMPAIGN.planned),
    benchmark=one_of(bench.benchmark for bench in CAMPAIGN.benchmarks),
    mixer=one_of(recall.mixer for recall in CAMPAIGN.recall),


include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.report.output,
        rules.collect.output,
        # Named here too, so that Snakemake makes deleted records again.
        [f"{FOLDER}/{path}" for path in PLANNED if not path.startswith("data/")],
    message:
        "All is made. Report: {rules.report.output}"


onstart:
    jobs = list(workflow.dag.needrun_jobs())
    here = workflow.executor_plugin.name == "local"
    try:
        CAMPAIGN.begin(
            prepared=[job.wildcards.data for job in jobs if job.rule.name == "prepare"],
            trained=[
                RUN.format(**job.wildcards_dict) for job in jobs if job.rule.name == "train"
            ],
            on_gpu=here and any(job.resources.get("gpu") for job in jobs),
        )
        # Inputs are from the future if the clock was set back. Dates mean nothing here, but
        # Snakemake would fail each job that read such an input, after the job had finished.
        for path in {Path(path) for job in jobs for path in job.input}:
            if path.exists() and path.stat().st_mtime > time():
                path.touch()
    except (RelationError, OSError) as error:
        sys.exit(f"error: {error}")
