from report.tables import TABLES

LABELS = [table.label for table in TABLES]


rule cells:
    input:
        records=RECORDS,
        paper=sorted((PROJECT / "report" / "paper").glob("*.csv")),
    output:
        f"{FOLDER}/report/cells.parquet",
    log:
        f"{FOLDER}/logs/cells.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        settings=SETTINGS,
        code=code_hash("cells"),
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
        templates=sorted((PROJECT / "report" / "templates").glob("*.j2")),
    output:
        index=f"{FOLDER}/report/index.html",
        html=expand(f"{FOLDER}/report/tables/{{label}}.html", label=LABELS),
        tex=expand(f"{FOLDER}/report/tables/{{label}}.tex", label=LABELS),
    log:
        f"{FOLDER}/logs/report.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        code=code_hash("report"),
    shell:
        "python -m relation report --config {params.config} 2>&1 | tee -i {log}"
