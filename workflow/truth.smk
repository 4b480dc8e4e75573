include: "common.smk"


rule truth:
    input:
        device="config/devices/{device}.yaml",
        models="data/zoo/models.parquet",
    output:
        truth=update("results/{device}/evaluation/truth.parquet"),
        environment=update("results/{device}/evaluation/environment.json"),
    log:
        "work/logs/truth-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "measurement", "truth"),
        rows="data/rows/{device}/truth",
    script:
        "scripts/truth.py"
