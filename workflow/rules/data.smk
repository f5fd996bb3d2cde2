rule prepare:
    output:
        tokenizer=f"{FOLDER}/data/{{data}}/tokenizer.json",
        train=f"{FOLDER}/data/{{data}}/train.bin",
        validation=f"{FOLDER}/data/{{data}}/validation.bin",
        record=f"{FOLDER}/data/{{data}}/data.parquet",
    log:
        f"{FOLDER}/logs/prepare/{{data}}.log",
    threads: 2
    params:
        spec=lambda w: CAMPAIGN.data[w.data].hash,
    message:
        "Prepare the tokens of {wildcards.data}; log: {log}"
    shell:
        "python -m relation prepare {wildcards.data}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"
