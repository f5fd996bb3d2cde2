from re import escape


def one_of(names):
    """A pattern that matches only these names, so that no rule makes a misspelt file."""
    return "|".join(escape(str(name)) for name in dict.fromkeys(names)) or "(?!)"


wildcard_constraints:
    data=one_of(CAMPAIGN.data),
    scale=one_of(CAMPAIGN.matrix.section.scales),
    variation=one_of(CAMPAIGN.variations),
    variant=one_of(run.variant for run in CAMPAIGN.planned),
    seed=one_of(run.seed for run in CAMPAIGN.planned),
    benchmark=one_of(bench.benchmark for bench in CAMPAIGN.benchmarks),
    mixer=one_of(recall.mixer for recall in CAMPAIGN.recall),


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
    shell:
        "python -m relation prepare {wildcards.data}"
        f" --config {CONFIG} --hash {{params.spec}} > {{log}} 2>&1"
