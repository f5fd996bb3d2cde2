from relation.records.provenance import checkout_hash
from report.jobs.schemas import FRAMES
from report.pages import ASSETS, PAGES
from report.tables import TABLES

LABELS = [table.label for table in TABLES]
TEMPLATES = PROJECT / "report" / "templates"


rule cells:
    input:
        records=RECORDS,
        paper=sorted((PROJECT / "report" / "paper").glob("*.csv")),
        tolerances=PROJECT / "report" / "tolerances.toml",
    output:
        expand(f"{FOLDER}/report/{{frame}}.parquet", frame=FRAMES),
    log:
        f"{FOLDER}/logs/cells.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        settings=SETTINGS,
        code=code_hash("cells"),
        # Shipped records stay when code changes; the report then says that theirs is older.
        checkout=checkout_hash(),
    shell:
        "python -m relation cells --config {params.config}"
        " --expect {params.settings} 2>&1 | tee -i {log}"


rule figures:
    input:
        records=RECORDS,
    output:
        record=f"{FOLDER}/report/figures.parquet",
        folder=directory(f"{FOLDER}/report/figures"),
    log:
        f"{FOLDER}/logs/figures.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        settings=SETTINGS,
        code=code_hash("figures"),
    shell:
        "python -m relation figures --config {params.config}"
        " --expect {params.settings} 2>&1 | tee -i {log}"


rule report:
    input:
        cells=rules.cells.output,
        figures=rules.figures.output.record,
        records=RECORDS,
        templates=sorted(set(TEMPLATES.iterdir()) - set(TEMPLATES.glob("*.tex.j2"))),
    output:
        pages=expand(f"{FOLDER}/report/{{page}}", page=PAGES + ASSETS),
        runs=directory(f"{FOLDER}/report/runs"),
        tables=expand(
            f"{FOLDER}/report/tables/{{label}}.{{form}}",
            label=LABELS,
            form=("html", "csv"),
        ),
    log:
        f"{FOLDER}/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        code=code_hash("report"),
    shell:
        "python -m relation report --config {params.config} 2>&1 | tee -i {log}"
