include: "common.smk"


rule cold_start:
    input:
        device="config/devices/{device}.yaml",
    output:
        runs="results/{device}/cold/runs.parquet",
        bandwidth="results/{device}/cold/bandwidth.parquet",
        profiles="results/{device}/cold/profiles.parquet",
        plans="results/{device}/cold/plans.parquet",
        models="results/{device}/cold/models.parquet",
        checks="results/{device}/cold/checks.parquet",
        spans="results/{device}/cold/spans.parquet",
        energy="results/{device}/cold/energy.parquet",
        notes="results/{device}/cold/notes.json",
        environment="results/{device}/cold/environment.json",
        documents=directory("results/{device}/cold/plans"),
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
