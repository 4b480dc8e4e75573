include: "common.smk"


rule evaluation:
    input:
        models="data/zoo/models.parquet",
        prior="data/zoo/prior.parquet",
        calibration="results/{device}/calibration/models.parquet",
        truth="results/{device}/evaluation/truth.parquet",
        environment="results/{device}/evaluation/environment.json",
        rules="results/{device}/fusion/rules.json",
        test_cases="results/{device}/fusion/test_cases.csv",
        verification="results/{device}/fusion/verification.csv",
        kernels="results/{device}/measurements/kernels.parquet",
        summary="results/{device}/measurements/sampling.json",
        card="results/{device}/predictors/card.json",
        quality="results/{device}/predictors/quality.parquet",
        samplers="results/{device}/predictors/samplers.csv",
    output:
        models="results/{device}/evaluation/models.parquet",
        kernels="results/{device}/evaluation/kernels.parquet",
        breakdown="results/{device}/evaluation/breakdown.parquet",
        sweeps="results/{device}/evaluation/sweeps.parquet",
        modes="results/{device}/evaluation/modes.csv",
        conv_fusion="results/{device}/evaluation/conv_fusion.csv",
        dates="results/{device}/evaluation/dates.json",
        metrics="results/{device}/chapters/prediction.json",
        # `snakemake --report` shows what these folders hold.
        tables=report(
            directory("results/{device}/tables"),
            patterns=["{table}.csv"],
            category="Latency prediction: tables",
            subcategory="{device}",
            labels={"table": "{table}"},
        ),
        figures=report(
            directory("results/{device}/figures"),
            patterns=["{figure}.png"],
            category="Latency prediction: figures",
            subcategory="{device}",
            labels={"figure": "{figure}"},
        ),
    log:
        "work/logs/evaluation-{device}.log",
    threads: workflow.cores
    params:
        sections=sections("seed", "evaluation"),
        rows="data/rows/{device}",
    script:
        "scripts/evaluation.py"
