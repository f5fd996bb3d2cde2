"""The reproduction as one DAG: data, training, diagnostics, systems, report.

`snakemake --cores all` regenerates every table of the campaign that config.yaml chooses.
"""

import json
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.27")

PROJECT = Path(workflow.basedir)
sys.path.insert(0, str(PROJECT))


configfile: str(PROJECT / "config.yaml")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/training.smk"
include: "workflow/rules/diagnostics.smk"
include: "workflow/rules/systems.smk"
include: "workflow/rules/report.smk"


rule all:
    default_target: True
    input:
        rules.report.output,


onstart:
    from relation.files import write_text

    write_text(Path(STARTED_WITH), json.dumps(CAMPAIGN.settings, indent=2))
