from report.render.typeset import can_typeset


rule document:
    input:
        cells=rules.cells.output,
        figures=rules.figures.output.record,
        beside=BESIDE,
        templates=sorted(TEMPLATES.glob("*.tex.j2")),
    output:
        tex=expand(f"{FOLDER}/report/tables/{{label}}.tex", label=LABELS, allow_missing=True),
        document=f"{FOLDER}/report/report.tex",
        # Where TeX is installed later, the PDF is missing and the rule runs again.
        pdf=[f"{FOLDER}/report/report.pdf"] if can_typeset() else [],
    log:
        f"{FOLDER}/logs/document.log",
    conda:
        "../../environment.yml"
    params:
        code=code_hash("document", REPORTED),
    message:
        "write the tables in LaTeX and report.pdf; log {log}"
    shell:
        f"python -m relation document {CHOICE}" " 2>&1 | tee -i {log}"
