"""The reproduction as one DAG: data, runs, what is measured on them, the report.

`snakemake --cores all` makes the report of the campaign that config.yaml chooses. A job runs again
where the hash of its specification changed or its output is missing, and for no edit of code.
"""

import sys
from pathlib import Path

PROJECT = Path(workflow.basedir)
sys.path.insert(0, str(PROJECT))

from relation import records
from relation.errors import InputError, RelationError
from relation.plan import load


configfile: str(PROJECT / "config.yaml")


try:
    CAMPAIGN = load(config)
    # What is to be made, by path, with its hash: all but what results/published has.
    FILES = CAMPAIGN.files()
    # The corpora that are prepared as planned. Here a damaged record is refused in one line.
    READY = [
        name
        for name, data in CAMPAIGN.data.items()
        if records.is_made(CAMPAIGN.folder / "data" / name / "data.parquet", data.hash)
    ]
except InputError as error:
    sys.exit(f"error: {error}")
FOLDER = CAMPAIGN.folder.as_posix()
CONFIG = CAMPAIGN.settings_file.as_posix()  # what jobs read, whatever becomes of config.yaml
# Snakemake counts no GPUs: as many jobs run at once as there are, or `runs_per_gpu` on each.
ON_GPU = CAMPAIGN.device == "cuda"
ON_CLUSTER = bool(workflow.resource_settings.default_resources)  # which a cluster's profile has
if "gpu" not in workflow.global_resources:
    workflow.register_resource("gpu", CAMPAIGN.gpu_jobs())
BIN = str(Path(sys.executable).parent)
shell.prefix(f"export PATH={BIN!r}:$PATH PYTHONPATH={str(PROJECT)!r}; ")


include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.report.output,
        rules.collect.output,
        # By themselves too, so that a record that was deleted is made again.
        [f"{FOLDER}/{path}" for path in FILES if not path.startswith("data/")],


onstart:
    jobs = list(workflow.dag.needrun_jobs())
    here = workflow.executor_plugin.name == "local"
    try:
        CAMPAIGN.begin(
            prepared=[job.wildcards.data for job in jobs if job.rule.name == "prepare"],
            on_gpu=here and any(job.resources.get("gpu") for job in jobs),
        )
    except (RelationError, OSError) as error:
        sys.exit(f"error: {error}")
