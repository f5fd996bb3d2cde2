rule diagnose:
    input:
        reads("diagnose"),
    output:
        **writes("diagnose"),
    log:
        log_of("diagnose"),
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=OWN_GPU,
        gpu_share=OWN_SHARE,
    params:
        config=STARTED_WITH,
        target="{scale}/{variant}/{seed}",
        spec=spec("diagnose"),
        code=code("diagnose"),
    message:
        "diagnose {params.target}; log {log}"
    shell:
        "python -m relation diagnose {params.target}"
        " --config {params.config} --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"


# Before further runs begin, so that a stopped campaign has whole readings.
use rule diagnose as diagnose_reading with:
    input:
        reads("diagnose_reading"),
    output:
        **writes("diagnose_reading"),
    log:
        log_of("diagnose_reading"),
    priority: 1
    resources:
        gpu=WHOLE_GPU,
        gpu_share=SHARED_GPU,
    params:
        config=STARTED_WITH,
        target="{reading}/{variant}/{seed}",
        spec=spec("diagnose_reading"),
        code=code("diagnose_reading"),


# What the report reads of the readings, and what is shipped: a file a kind of record. Where none is
# asked for, what was gathered before stays.
if CAMPAIGN.reading_runs:

    rule collect:
        input:
            reads("collect"),
        output:
            **writes("collect"),
        log:
            log_of("collect"),
        conda:
            "../../environment.yml"
        params:
            config=STARTED_WITH,
            runs=canonical_hash([run.config_hash for run in CAMPAIGN.reading_runs]),
            code=code("collect"),
        message:
            "gather the records of the readings; log {log}"
        shell:
            "python -m relation collect --config {params.config} 2>&1 | tee -i {log}"
