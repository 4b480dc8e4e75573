"""Rules of the chapter prediction. Written by `make wire` from workflow/edgeplan/chapters/prediction/chapter.py; change that."""


rule zoo:
    """
    Draw base models, variants, and the prior distribution.
    """
    output:
        update("data/zoo/models.parquet"),
        update("data/zoo/prior.parquet"),
        update("data/zoo/costs.csv"),
    log:
        "work/logs/zoo.log",
    benchmark:
        "work/benchmarks/zoo.tsv"
    params:
        zoo=config["zoo"],
    shell:
        "edgeplan stage zoo"


rule fusion:
    """
    Detect what a device's engine fuses by timing alone, and verify it by the engine's own report.
    """
    input:
        "config/devices/{device}.yaml",
        "data/zoo/models.parquet",
    output:
        update("results/{device}/fusion/rules.json"),
        update("results/{device}/fusion/test_cases.csv"),
        update("results/{device}/fusion/skipped_pairs.csv"),
        update("results/{device}/fusion/verification.csv"),
    log:
        "work/logs/fusion-{device}.log",
    benchmark:
        "work/benchmarks/fusion-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        measurement=config["measurement"],
        fusion=config["fusion"],
    shell:
        "edgeplan stage fusion --device {wildcards.device}"


rule nodes:
    """
    Ask a device's engine what it executes of every model that is learnt from or evaluated; nothing is timed.
    """
    input:
        "config/devices/{device}.yaml",
        "data/zoo/models.parquet",
        "results/{device}/fusion/rules.json",
    output:
        update("results/{device}/nodes/models.parquet"),
    log:
        "work/logs/nodes-{device}.log",
    benchmark:
        "work/benchmarks/nodes-{device}.tsv"
    threads: workflow.cores
    params:
        seed=config["seed"],
        zoo=config["zoo"],
        sampling=config["sampling"],
        calibration=config["calibration"],
    shell:
        "edgeplan stage nodes --device {wildcards.device}"


rule sampling:
    """
    Measure executed nodes by copies of them, the adaptive sampler's, random convolutions and held-out ones.
    """
    input:
        "config/devices/{device}.yaml",
        "results/{device}/nodes/models.parquet",
    output:
        update("results/{device}/measurements/kernels.parquet"),
        update("results/{device}/measurements/sampling.json"),
    log:
        "work/logs/sampling-{device}.log",
    benchmark:
        "work/benchmarks/sampling-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        measurement=config["measurement"],
        sampling=config["sampling"],
    shell:
        "edgeplan stage sampling --device {wildcards.device}"


rule calibration:
    """
    Measure whole models of a seed of their own, on which predictions and intervals are calibrated.
    """
    input:
        "config/devices/{device}.yaml",
    output:
        update("results/{device}/calibration/models.parquet"),
    log:
        "work/logs/calibration-{device}.log",
    benchmark:
        "work/benchmarks/calibration-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        zoo=config["zoo"],
        measurement=config["measurement"],
        sampling=config["sampling"],
        truth=config["truth"],
        calibration=config["calibration"],
    shell:
        "edgeplan stage calibration --device {wildcards.device}"


rule training:
    """
    Train the predictor of a device, and what it is compared with.
    """
    input:
        "config/devices/{device}.yaml",
        "results/{device}/nodes/models.parquet",
        "results/{device}/measurements/kernels.parquet",
        "results/{device}/measurements/sampling.json",
        "results/{device}/calibration/models.parquet",
    output:
        update("results/{device}/predictors/card.json"),
        update("results/{device}/predictors/quality.parquet"),
        update("results/{device}/predictors/samplers.csv"),
        update("results/{device}/predictors/compared.parquet"),
    log:
        "work/logs/training-{device}.log",
    benchmark:
        "work/benchmarks/training-{device}.tsv"
    threads: workflow.cores
    params:
        seed=config["seed"],
        training=config["training"],
    shell:
        "edgeplan stage training --device {wildcards.device}"


rule truth:
    """
    Measure whole models, plain and unprofiled, normalised by the references that normalise the labels.
    """
    input:
        "config/devices/{device}.yaml",
        "data/zoo/models.parquet",
    output:
        update("results/{device}/evaluation/truth.parquet"),
        update("results/{device}/evaluation/environment.json"),
    log:
        "work/logs/truth-{device}.log",
    benchmark:
        "work/benchmarks/truth-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        measurement=config["measurement"],
        truth=config["truth"],
    shell:
        "edgeplan stage truth --device {wildcards.device}"


rule evaluation:
    """
    Compare predictions with measured whole models, in tables, figures and metrics.
    """
    input:
        "data/zoo/models.parquet",
        "data/zoo/prior.parquet",
        "results/{device}/calibration/models.parquet",
        "results/{device}/evaluation/truth.parquet",
        "results/{device}/evaluation/environment.json",
        "results/{device}/nodes/models.parquet",
        "results/{device}/fusion/rules.json",
        "results/{device}/fusion/test_cases.csv",
        "results/{device}/fusion/verification.csv",
        "results/{device}/measurements/kernels.parquet",
        "results/{device}/measurements/sampling.json",
        "results/{device}/predictors/card.json",
        "results/{device}/predictors/quality.parquet",
        "results/{device}/predictors/samplers.csv",
        "results/{device}/predictors/compared.parquet",
    output:
        update("results/chapters/{device}/prediction.json"),
        update("results/chapters/{device}/prediction.page.json"),
        update("results/{device}/evaluation/models.parquet"),
        update("results/{device}/evaluation/breakdown.parquet"),
        update("results/{device}/evaluation/sweeps.parquet"),
        update("results/{device}/evaluation/conv_fusion.csv"),
        report(
            update(directory("results/{device}/tables")),
            patterns=["{shown}.csv"],
            category="Latency predicted kernel by kernel: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/figures")),
            patterns=["{shown}.svg"],
            category="Latency predicted kernel by kernel: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/evaluation-{device}.log",
    benchmark:
        "work/benchmarks/evaluation-{device}.tsv"
    threads: workflow.cores
    params:
        seed=config["seed"],
        evaluation=config["evaluation"],
    shell:
        "edgeplan stage evaluation --device {wildcards.device}"


rule unseen:
    """
    Measure and predict architectures outside the zoo's families (see `edgeplan.zoo.unseen`).
    """
    input:
        "config/devices/{device}.yaml",
        "results/{device}/fusion/rules.json",
        "results/{device}/predictors/card.json",
    output:
        update("results/chapters/{device}/unseen.json"),
        update("results/{device}/unseen/models.csv"),
    log:
        "work/logs/unseen-{device}.log",
    benchmark:
        "work/benchmarks/unseen-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        measurement=config["measurement"],
        truth=config["truth"],
        unseen=config["unseen"],
    shell:
        "edgeplan stage unseen --device {wildcards.device}"


rule transfer:
    """
    Try predictors of one device on another, beside the rebuilt ones.
    """
    input:
        f"results/{config['transfer']['source']}/evaluation/models.parquet",
        f"results/{config['transfer']['target']}/evaluation/models.parquet",
        f"results/{config['transfer']['source']}/evaluation/environment.json",
        f"results/{config['transfer']['target']}/evaluation/environment.json",
    output:
        update("results/transfer/table_11.csv"),
        update("results/chapters/transfer/transfer.page.json"),
    log:
        "work/logs/transfer.log",
    benchmark:
        "work/benchmarks/transfer.tsv"
    params:
        transfer=config["transfer"],
    shell:
        "edgeplan stage transfer"
