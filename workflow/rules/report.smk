SOURCES = (".py", ".csv", ".j2", ".mplstyle")
REPORT = sorted(path for path in Path("report").rglob("*") if path.suffix in SOURCES)
SHIPPED = records.PUBLISHED / CAMPAIGN.name


rule collect:
    input:
        made=[f"{FOLDER}/{path}" for path in PLANNED],
        shipped=sorted(SHIPPED.glob("*.parquet")) if CAMPAIGN.published else [],
    output:
        expand(f"{FOLDER}/{{kind}}.parquet", kind=records.FILES),
    log:
        f"{FOLDER}/logs/collect.log",
    params:
        spec=CAMPAIGN.hash,
    message:
        "Join all records into {FOLDER}/*.parquet; log: {log}"
    shell:
        f"python -m relation collect --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"


rule report:
    input:
        rules.collect.output,
        source=REPORT,
    output:
        f"{FOLDER}/report/index.html",
    log:
        f"{FOLDER}/logs/report.log",
    message:
        "Write the report, {output}; log: {log}"
    shell:
        f"python -m relation report --config {CONFIG} > {{log}} 2>&1"


# The report of the shipped results: `make published`.
rule published:
    input:
        sorted(p for p in records.PUBLISHED.glob("*/*.parquet") if p.parent.name != "report"),
        sorted(Path("config").glob("*.yaml")),
        source=REPORT,
    output:
        "results/published/report/index.html",
    log:
        "results/published/report.log",
    message:
        "Write the report, {output}; log: {log}"
    shell:
        "python -m relation report --published > {log} 2>&1"
