include: "common.smk"


# the rules of shipped devices that stand where timing decides nothing
PRIOR = [
    f"workflow/edgeplan/shipped/{name}/rules.json" for name in config["fusion"]["prior"]
]


rule fusion:
    input:
        device="config/devices/{device}.yaml",
        models="data/zoo/models.parquet",
        prior=PRIOR,
    output:
        rules=update("results/{device}/fusion/rules.json"),
        test_cases=update("results/{device}/fusion/test_cases.csv"),
        skipped=update("results/{device}/fusion/skipped_pairs.csv"),
        verification=update("results/{device}/fusion/verification.csv"),
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
