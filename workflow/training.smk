include: "common.smk"


rule training:
    input:
        kernels="results/{device}/measurements/kernels.parquet",
        summary="results/{device}/measurements/sampling.json",
        rules="results/{device}/fusion/rules.json",
        calibration="results/{device}/calibration/models.parquet",
        prior=[
            f"workflow/edgeplan/shipped/{name}/{file}"
            for name in config["training"]["prior"]
            for file in ("card.json", "trees.npz", "kernels.parquet")
        ],
    output:
        card="results/{device}/predictors/card.json",
        quality="results/{device}/predictors/quality.parquet",
        samplers="results/{device}/predictors/samplers.csv",
    log:
        "work/logs/training-{device}.log",
    threads: workflow.cores
    params:
        sections=sections("seed", "training"),
    script:
        "scripts/training.py"
