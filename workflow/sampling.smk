include: "common.smk"


rule sampling:
    input:
        device="config/devices/{device}.yaml",
        prior="data/zoo/prior.parquet",
        rules="results/{device}/fusion/rules.json",
    output:
        kernels=update("results/{device}/measurements/kernels.parquet"),
        summary=update("results/{device}/measurements/sampling.json"),
    log:
        "work/logs/sampling-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "measurement", "sampling"),
        rows="data/rows/{device}/sampling",
    script:
        "scripts/sampling.py"
