include: "common.smk"


rule calibration:
    input:
        device="config/devices/{device}.yaml",
    output:
        models=update("results/{device}/calibration/models.parquet"),
    log:
        "work/logs/calibration-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "zoo", "measurement", "truth", "calibration"),
        rows="data/rows/{device}/calibration",
    script:
        "scripts/calibration.py"
