"""Reports of the shipped results alone, results/published/<campaign>/.

`snakemake -s workflow/published.smk --cores all` computes cells, draws figures and renders pages.
No rule here trains, diagnoses or measures, so that nothing can start it.
"""

import sys
from dataclasses import replace
from pathlib import Path

from snakemake.utils import min_version

min_version("9.27")

PROJECT = Path(workflow.basedir).parent
sys.path.insert(0, str(PROJECT))

from relation.code import code_hash
from relation.errors import InputError
from relation.records.provenance import checkout_hash
from relation.results import CHECKSUMS, chosen_results
from relation.spec import canonical_hash
from report.typeset import can_typeset
from report.jobs.schemas import FRAMES
from report.pages import ASSETS, PAGES
from report.tables import TABLES

CONFIG = PROJECT / "config.yaml"
TEMPLATES = PROJECT / "report" / "templates"
LABELS = [table.label for table in TABLES]


configfile: str(CONFIG)


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
    CAMPAIGNS, RECORDS = {}, {}
    for name in NAMES:
        shipped = replace(chosen_results(config, campaign=name), shipped_only=True)
        shipped.check_shipped()
        CAMPAIGNS[name] = shipped.campaign
        shown = shipped.of_readings
        readings = () if shown is None else shown.shipped_readings().values()
        records = dict.fromkeys((*shipped.shipped_files(), *readings))
        RECORDS[name] = [path.as_posix() for path in records]
except InputError as error:
    sys.exit(f"error: {error}")


wildcard_constraints:
    campaign="|".join(NAMES),


def settings(wildcards):
    return canonical_hash(CAMPAIGNS[wildcards.campaign].settings)


rule all:
    default_target: True
    input:
        expand(f"{FOLDER}/report/{{page}}", page=("index.html", "report.tex"), campaign=NAMES),


rule cells:
    input:
        records=lambda w: RECORDS[w.campaign],
        paper=sorted((PROJECT / "report" / "paper").glob("*.csv")),
        tolerances=PROJECT / "report" / "tolerances.toml",
    output:
        expand(f"{FOLDER}/report/{{frame}}.parquet", frame=FRAMES, allow_missing=True),
    log:
        f"{FOLDER}/logs/cells.log",
    conda:
        "../environment.yml"
    params:
        config=CONFIG.as_posix(),
        settings=settings,
        code=code_hash("cells"),
        checkout=checkout_hash(),
    shell:
        "python -m relation cells --shipped --campaign {wildcards.campaign}"
        " --config {params.config:q} --expect {params.settings} 2>&1 | tee -i {log}"


rule figures:
    input:
        records=lambda w: RECORDS[w.campaign],
    output:
        record=f"{FOLDER}/report/figures.parquet",
        folder=directory(f"{FOLDER}/report/figures"),
    log:
        f"{FOLDER}/logs/figures.log",
    conda:
        "../environment.yml"
    params:
        config=CONFIG.as_posix(),
        settings=settings,
        code=code_hash("figures"),
    shell:
        "python -m relation figures --shipped --campaign {wildcards.campaign}"
        " --config {params.config:q} --expect {params.settings} 2>&1 | tee -i {log}"


rule report:
    input:
        cells=rules.cells.output,
        figures=rules.figures.output.record,
        records=lambda w: RECORDS[w.campaign],
        templates=sorted(set(TEMPLATES.iterdir()) - set(TEMPLATES.glob("*.tex.j2"))),
    output:
        pages=expand(f"{FOLDER}/report/{{page}}", page=PAGES + ASSETS, allow_missing=True),
        runs=directory(f"{FOLDER}/report/runs"),
        tables=expand(
            f"{FOLDER}/report/tables/{{label}}.{{form}}",
            label=LABELS,
            form=("html", "csv"),
            allow_missing=True,
        ),
    log:
        f"{FOLDER}/logs/report.log",
    conda:
        "../environment.yml"
    params:
        config=CONFIG.as_posix(),
        code=code_hash("report"),
    shell:
        "python -m relation report --shipped --campaign {wildcards.campaign}"
        " --config {params.config:q} 2>&1 | tee -i {log}"


rule document:
    input:
        cells=rules.cells.output,
        figures=rules.figures.output.record,
        templates=sorted(TEMPLATES.glob("*.tex.j2")),
    output:
        tex=expand(f"{FOLDER}/report/tables/{{label}}.tex", label=LABELS, allow_missing=True),
        document=f"{FOLDER}/report/report.tex",
        # Where TeX is installed later, the PDF is missing and the rule runs again.
        pdf=[f"{FOLDER}/report/report.pdf"] if can_typeset() else [],
    log:
        f"{FOLDER}/logs/document.log",
    conda:
        "../environment.yml"
    params:
        config=CONFIG.as_posix(),
        code=code_hash("document"),
    shell:
        "python -m relation document --shipped --campaign {wildcards.campaign}"
        " --config {params.config:q} 2>&1 | tee -i {log}"
