rule prepare:
    output:
        **writes("prepare"),
    log:
        log_of("prepare"),
    conda:
        "../../environment.yml"
    threads: 2
    params:
        config=STARTED_WITH,
        spec=spec("prepare"),
        corpus=lambda w: corpus_fingerprint(CAMPAIGN.data[w.dataset].path),
        code=code("prepare"),
    message:
        "prepare {wildcards.dataset}; log {log}"
    shell:
        "python -m relation prepare {wildcards.dataset} --config {params.config}"
        " --expect {params.spec} 2>&1 | tee -i {log}"


rule inventory:
    output:
        **writes("inventory"),
    log:
        log_of("inventory"),
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        settings=SETTINGS,
        code=code("inventory"),
    message:
        "count the parameters of the models; log {log}"
    shell:
        "python -m relation inventory --config {params.config}"
        " --expect {params.settings} 2>&1 | tee -i {log}"
