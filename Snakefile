"""The reproduction as one DAG: data, training, diagnostics, systems, report.

`snakemake --cores all` regenerates every table of the campaign that config.yaml chooses.
"""

import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")

PROJECT = Path(workflow.basedir)
sys.path.insert(0, str(PROJECT))

from relation.errors import InputError
from relation.pipeline.config import load_config

# Snakemake says no line of a file that is not YAML.
try:
    load_config(PROJECT / "config.yaml")
except InputError as error:
    sys.exit(f"error: {error}")


configfile: str(PROJECT / "config.yaml")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/diagnostics.smk"
include: "workflow/rules/beyond.smk"
include: "workflow/rules/systems.smk"
include: "workflow/rules/verification.smk"
include: "workflow/rules/probes.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/document.smk"


rule all:
    default_target: True
    input:
        # Named here, a record that is missing is made although a report without it is there.
        RECORDS,
        rules.report.output,
        rules.document.output,
    message:
        "everything is there"


onstart:
    jobs = list(workflow.dag.needrun_jobs())
    for job in jobs:
        name, log = "/".join(job.wildcards), Path(job.log[0]) if job.log else None
        STARTED.append(Started(job.rule.name, name, tuple(map(Path, job.output)), log))
    local = workflow.executor_plugin.name == "local"
    if local:
        decide_at_once()
    try:
        prepared = [job for job in jobs if job.rule.name == "prepare"]
        check(
            CAMPAIGN,
            datasets=[job.wildcards.dataset for job in prepared],
            replaced={
                job.wildcards.dataset for job in prepared if Path(job.output[0]).exists()
            },
            needs_gpu=local
            and any(job.resources.get("gpu") or job.resources.get("gpu_share") for job in jobs),
            inputs={str(path) for job in jobs for path in job.input},
        )
        write_started_with(CAMPAIGN, RESULTS)
        if CAMPAIGN.import_once and local and not (ON_GPU or deployed):
            import_once()
    except InputError as error:
        sys.exit(f"error: {error}")


onsuccess:
    last_words(True)


onerror:
    last_words(False)
