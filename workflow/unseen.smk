include: "common.smk"


rule unseen:
    input:
        device="config/devices/{device}.yaml",
        rules="results/{device}/fusion/rules.json",
        card="results/{device}/predictors/card.json",
    output:
        models="results/{device}/unseen/models.csv",
        kernels="results/{device}/unseen/kernels.csv",
        metrics="results/{device}/chapters/unseen.json",
    log:
        "work/logs/unseen-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "measurement", "truth", "unseen"),
        rows="data/rows/{device}/unseen",
    script:
        "scripts/unseen.py"
