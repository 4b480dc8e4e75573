include: "common.smk"


rule zoo:
    output:
        models="data/zoo/models.parquet",
        prior="data/zoo/prior.parquet",
        costs="data/zoo/costs.csv",
    log:
        "work/logs/zoo.log",
    params:
        sections=sections("zoo"),
    script:
        "scripts/zoo.py"
