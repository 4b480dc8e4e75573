include: "common.smk"


def shipped_prior():
    """What the package ships of the devices that are learnt from; a missing one is told by the stage that checks params."""
    files = ("card.json", "trees.npz", "kernels.parquet")
    names = config["training"]["prior"]
    return [f"workflow/edgeplan/shipped/{name}/{file}" for name in names for file in files]


rule training:
    input:
        kernels="results/{device}/measurements/kernels.parquet",
        summary="results/{device}/measurements/sampling.json",
        rules="results/{device}/fusion/rules.json",
        calibration="results/{device}/calibration/models.parquet",
        prior=shipped_prior(),
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
