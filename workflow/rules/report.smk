from relation.pipeline.provenance import checkout_hash
from report.judge.frames import FRAMES
from report.render.pages import ASSETS, PAGES
from report.values.tables import EVERY

# The including workflow sets FOLDER, RECORDS and SETTINGS, constants or functions of wildcards,
# CHOICE, the options of the commands, REPORTED, the entries of registries that a report uses, and
# DRAWN, the record of another report's figures, or none; and BESIDE, the claims of the reports that
# this one names.
LABELS = [table.label for table in EVERY]
TEMPLATES = SOURCE / "report" / "templates"


rule cells:
    input:
        records=RECORDS,
        paper=sorted((SOURCE / "report" / "paper").glob("*.csv")),
        tolerances=SOURCE / "report" / "tolerances.toml",
    output:
        expand(f"{FOLDER}/report/{{frame}}.parquet", frame=FRAMES, allow_missing=True),
    log:
        f"{FOLDER}/logs/cells.log",
    # Where several reports are made, each waits for the claims of all.
    priority: 3
    conda:
        "../../environment.yml"
    params:
        settings=SETTINGS,
        code=code_hash("cells", REPORTED),
        # Shipped records stay when code changes; the report then says that theirs is older.
        checkout=checkout_hash(),
    message:
        "compute every cell and claim; log {log}"
    shell:
        f"python -m relation cells {CHOICE}" " --expect {params.settings} 2>&1 | tee -i {log}"


rule figures:
    input:
        records=RECORDS,
        drawn=DRAWN,
    output:
        record=f"{FOLDER}/report/figures.parquet",
        folder=directory(f"{FOLDER}/report/figures"),
    log:
        f"{FOLDER}/logs/figures.log",
    # The longest jobs of a report begin first.
    priority: 2
    conda:
        "../../environment.yml"
    params:
        settings=SETTINGS,
        code=code_hash("figures", REPORTED),
    message:
        "draw the figures; log {log}"
    shell:
        f"python -m relation figures {CHOICE} --drawn {{input.drawn}}"
        " --expect {params.settings} 2>&1 | tee -i {log}"


rule report:
    input:
        cells=rules.cells.output,
        figures=rules.figures.output.record,
        beside=BESIDE,
        records=RECORDS,
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
        "../../environment.yml"
    params:
        code=code_hash("report", REPORTED),
    message:
        "render the pages; log {log}"
    shell:
        f"python -m relation report {CHOICE}" " 2>&1 | tee -i {log}"
