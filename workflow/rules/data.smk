rule prepare:
    output:
        tokenizer=f"{FOLDER}/data/{{dataset}}/tokenizer.json",
        train=f"{FOLDER}/data/{{dataset}}/train.bin",
        validation=f"{FOLDER}/data/{{dataset}}/validation.bin",
        record=f"{FOLDER}/data/{{dataset}}/data.parquet",
    log:
        f"{FOLDER}/logs/prepare/{{dataset}}.log",
    conda:
        "../../environment.yml"
    threads: 2
    params:
        config=STARTED_WITH,
        spec=lambda w: CAMPAIGN.data[w.dataset].job_hash,
        corpus=lambda w: corpus_fingerprint(CAMPAIGN.data[w.dataset].path),
        code=code_hash("data"),
    shell:
        "python -m relation prepare {wildcards.dataset} --config {params.config}"
        " --expect {params.spec} 2>&1 | tee -i {log}"


rule inventory:
    output:
        f"{FOLDER}/models.parquet",
    log:
        f"{FOLDER}/logs/inventory.log",
    conda:
        "../../environment.yml"
    params:
        config=STARTED_WITH,
        settings=SETTINGS,
        code=code_hash("models"),
    shell:
        "python -m relation inventory --config {params.config}"
        " --expect {params.settings} 2>&1 | tee -i {log}"
