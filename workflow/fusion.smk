include: "common.smk"


rule fusion:
    input:
        device="config/devices/{device}.yaml",
        models="data/zoo/models.parquet",
    output:
        rules="results/{device}/fusion/rules.json",
        test_cases="results/{device}/fusion/test_cases.csv",
        skipped="results/{device}/fusion/skipped_pairs.csv",
        verification="results/{device}/fusion/verification.csv",
    log:
        "work/logs/fusion-{device}.log",
    threads: workflow.cores
    resources:
        device=1,
    params:
        sections=sections("seed", "measurement", "fusion"),
        rows="data/rows/{device}/fusion",
    script:
        "scripts/fusion.py"
