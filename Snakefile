"""The reproduction as one DAG: data, runs, what is measured on them, the report.

`snakemake --cores all` makes the report of the campaign that config.yaml chooses. A job runs again
where the hash of its specification changed or its output is missing, and for no edit of code.
"""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")

PROJECT = Path(workflow.basedir)
sys.path.insert(0, str(PROJECT))

from relation import records
from relation.data import corpus
from relation.errors import InputError
from relation.plan import load


configfile: str(PROJECT / "config.yaml")


try:
    CAMPAIGN = load(config)
    # What is to be made, by path, with its hash: all but what results/published has.
    FILES = CAMPAIGN.files(records.published_hashes)
except InputError as error:
    sys.exit(f"error: {error}")
FOLDER = CAMPAIGN.folder.as_posix()
# Jobs read the configuration that they were planned with, whatever becomes of config.yaml.
CONFIG = CAMPAIGN.settings_file.as_posix()

# Snakemake counts no GPUs: as many jobs run at once as there are, or `runs_per_gpu` on each.
ON_GPU = CAMPAIGN.device == "cuda"
if "gpu" not in workflow.global_resources:
    gpus = 1
    if ON_GPU:
        from torch.cuda import device_count

        gpus = max(1, device_count()) * CAMPAIGN.runs_per_gpu
    workflow.register_resource("gpu", gpus)
GPUS = workflow.global_resources["gpu"].value
shell.prefix(f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={PROJECT}; ")


include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.report.output,


onstart:
    try:
        for job in workflow.dag.needrun_jobs():
            if job.rule.name == "prepare":
                corpus.check(CAMPAIGN.data[job.wildcards.data])
    except InputError as error:
        sys.exit(f"error: {error}")
    CAMPAIGN.write_settings(CAMPAIGN.settings_file)
