rule train:
    input:
        reads("train"),
    output:
        **writes("train"),
    log:
        log_of("train"),
    # A killed run goes on from its resume state; on a CPU a fault is more likely the user's. A
    # queue ends jobs for reasons of its own.
    retries: 3 if ON_CLUSTER else int(ON_GPU)
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=OWN_GPU,
        gpu_share=OWN_SHARE,
        processes=1,
        nodes=1,
    params:
        config=STARTED_WITH,
        target="{scale}/{variant}/{seed}",
        spec=spec("train"),
        code=code("train"),
    message:
        "train {params.target}; log {log}"
    shell:
        f"{ON_EACH_NODE} "
        "python -m relation train {params.target}"
        " --config {params.config} --expect {params.spec} --threads {threads}"
        f" --processes {PROCESSES}"
        " --nodes {resources.nodes}"
        " 2>&1 | tee -i {log}"


# A run of a reading: the same, elsewhere. Its times are no result, so it may share a GPU.
use rule train as train_reading with:
    input:
        reads("train_reading"),
    output:
        **writes("train_reading"),
    log:
        log_of("train_reading"),
    resources:
        gpu=WHOLE_GPU,
        gpu_share=SHARED_GPU,
        processes=1,
        nodes=1,
    params:
        config=STARTED_WITH,
        target="{reading}/{variant}/{seed}",
        spec=spec("train_reading"),
        code=code("train_reading"),
