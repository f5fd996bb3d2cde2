"""Reports of the shipped results alone, results/published/<campaign>/.

`snakemake -s workflow/published.smk --cores all` computes cells, draws figures and renders pages.
No rule here trains, diagnoses or measures, so that nothing can start it.
"""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")

PROJECT = Path(workflow.basedir).parent
sys.path.insert(0, str(PROJECT))

from relation.pipeline.hashes import code_hash
from relation.errors import InputError
from relation.pipeline.config import load_config
from relation.pipeline.results import chosen_results
from relation.pipeline.shipped import CHECKSUMS
from relation.spec import canonical_hash

# Snakemake says no line of a file that is not YAML.
try:
    load_config(PROJECT / "config.yaml")
except InputError as error:
    sys.exit(f"error: {error}")


configfile: str(PROJECT / "config.yaml")


include: "rules/shell.smk"


FOLDER = "results/published/{campaign}"
NAMES = sorted(path.parent.name for path in Path("results/published").glob(f"*/{CHECKSUMS}"))
if not NAMES:
    print(
        "results/published holds no campaign, so there is nothing to render; `python -m relation "
        "publish --campaign NAME` ships the records of one that has run"
    )
    sys.exit(0)
try:
    SHIPPED = {}
    for name in NAMES:
        SHIPPED[name] = replace(chosen_results(config, campaign=name), shipped_only=True)
        SHIPPED[name].shipped.check_all()
except InputError as error:
    sys.exit(f"error: {error}")

CONFIG = shlex.quote((SOURCE / "config.yaml").as_posix())
REPORTED = frozenset()  # every entry
BESIDE = [f"results/published/{name}/report/claims.parquet" for name in NAMES]
CHOICE = f"--shipped --campaign {{wildcards.campaign}} --config {CONFIG}"


def READ(wildcards):
    """The campaign and that whose readings it shows, each once."""
    shown = SHIPPED[wildcards.campaign].of_readings
    whose = wildcards.campaign if shown is None else shown.campaign.name
    return [name for name in dict.fromkeys((wildcards.campaign, whose)) if name in SHIPPED]


def RECORDS(wildcards):
    """For all shipped files their checksums, which they were checked against above.

    Snakemake would hash each of hundreds of files again for each file that a job makes of them.
    """
    return [f"results/published/{name}/{CHECKSUMS}" for name in READ(wildcards)]


def DRAWN(wildcards):
    """The figures of the campaign whose readings this one shows: both would draw the same."""
    return [f"results/published/{name}/report/figures.parquet" for name in READ(wildcards)[1:]]


def SETTINGS(wildcards):
    return canonical_hash(SHIPPED[wildcards.campaign].campaign.settings)


wildcard_constraints:
    campaign="|".join(NAMES),


include: "rules/report.smk"
include: "rules/document.smk"


rule all:
    default_target: True
    input:
        expand(f"{FOLDER}/report/{{page}}", page=("index.html", "report.tex"), campaign=NAMES),
    message:
        "every report is there"


onstart:
    if workflow.executor_plugin.name == "local" and not deployed:
        decide_at_once()
        import_once(
            "filelock jinja2 matplotlib.backends.backend_pdf matplotlib.backends.backend_svg numpy"
            " pandas pyarrow.parquet pydantic.type_adapter scipy.stats tqdm yaml"
            # A minute's work, in which nobody edits what draws it.
            " relation.cli.report report.figures report.judge.job report.render.document"
            " report.render.shipped report.render.site",
            str(PROJECT),
        )


onsuccess:
    for name in NAMES:
        print(f"Report: {SHIPPED[name].report / 'index.html'}", file=sys.stderr)
