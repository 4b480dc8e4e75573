include: "common.smk"


rule transfer:
    input:
        source=f"results/{config['transfer']['source']}/evaluation/models.parquet",
        target=f"results/{config['transfer']['target']}/evaluation/models.parquet",
        source_environment=f"results/{config['transfer']['source']}/evaluation/environment.json",
        target_environment=f"results/{config['transfer']['target']}/evaluation/environment.json",
        source_dates=f"results/{config['transfer']['source']}/evaluation/dates.json",
        target_dates=f"results/{config['transfer']['target']}/evaluation/dates.json",
    output:
        csv=report("results/transfer/table_11.csv", category="Transfer"),
    log:
        "work/logs/transfer.log",
    params:
        sections=sections("transfer"),
    script:
        "scripts/transfer.py"
