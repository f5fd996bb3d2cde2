rule verify:
    output:
        f"{FOLDER}/{VERIFICATION_FILE}",
    log:
        f"{FOLDER}/logs/verify.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
    params:
        config=STARTED_WITH,
        spec=CAMPAIGN.verification.job_hash,
        code=code_hash("verification"),
    shell:
        "python -m relation verify --config {params.config}"
        " --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"


# Before anything is trained: a step that loses a gradient trains another model.
rule verify_gradients:
    output:
        f"{FOLDER}/{GRADIENTS_FILE}",
    log:
        f"{FOLDER}/logs/verify-gradients.log",
    priority: 2
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        gpu=int(ON_GPU),
    params:
        config=STARTED_WITH,
        spec=CAMPAIGN.gradients.job_hash,
        code=code_hash("gradients"),
    shell:
        "python -m relation verify-gradients --config {params.config}"
        " --expect {params.spec} --threads {threads} 2>&1 | tee -i {log}"
