include: "common.smk"


rule cold_start:
    input:
        device="config/devices/{device}.yaml",
    output:
        runs=update("results/{device}/cold/runs.parquet"),
        bandwidth=update("results/{device}/cold/bandwidth.parquet"),
        profiles=update("results/{device}/cold/profiles.parquet"),
        plans=update("results/{device}/cold/plans.parquet"),
        models=update("results/{device}/cold/models.parquet"),
        checks=update("results/{device}/cold/checks.parquet"),
        spans=update("results/{device}/cold/spans.parquet"),
        energy=update("results/{device}/cold/energy.parquet"),
        notes=update("results/{device}/cold/notes.json"),
        environment=update("results/{device}/cold/environment.json"),
    log:
        "work/logs/cold_start-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "cold_start"),
        predictors="results/{device}/predictors",
        rows="data/rows/{device}/cold_start",
        work="work/cold",
    script:
        "scripts/cold_start.py"
