"""Rules of the chapter adaptation. Written by `make wire` from workflow/edgeplan/chapters/adaptation/chapter.py; change that."""


rule adaptation_rows:
    """
    Gather the rows of a device of this workspace in one folder for the ladder.
    """
    input:
        "results/{device}/measurements/kernels.parquet",
        "results/{device}/measurements/sampling.json",
        "results/{device}/fusion/rules.json",
        "results/{device}/calibration/models.parquet",
        "results/{device}/evaluation/truth.parquet",
        "results/{device}/evaluation/environment.json",
        "data/zoo/models.parquet",
    output:
        update("data/transfer/{device}/about.json"),
    log:
        "work/logs/adaptation_rows-{device}.log",
    benchmark:
        "work/benchmarks/adaptation_rows-{device}.tsv"
    shell:
        "edgeplan stage adaptation_rows --device {wildcards.device}"


rule ladder:
    """
    Predict a new device from so many seconds of measuring, cut out of kept rows.
    """
    output:
        update("results/{device}/ladder/ladder.parquet"),
        update("results/{device}/ladder/environment.json"),
    log:
        "work/logs/ladder-{device}.log",
    benchmark:
        "work/benchmarks/ladder-{device}.tsv"
    threads: workflow.cores
    params:
        seed=config["seed"],
        adaptation=config["adaptation"],
    shell:
        "edgeplan stage ladder --device {wildcards.device}"


rule ladder_tables:
    """
    Make the tables, the figure and the page of the ladder, with its figures of merit.
    """
    input:
        "results/{device}/ladder/ladder.parquet",
        "results/{device}/ladder/environment.json",
    output:
        update("results/chapters/{device}/adaptation.json"),
        update("results/chapters/{device}/adaptation.page.json"),
        report(
            update(directory("results/{device}/ladder/tables")),
            patterns=["{shown}.csv"],
            category="A new device in a minute: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/ladder/figures")),
            patterns=["{shown}.svg"],
            category="A new device in a minute: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/ladder_tables-{device}.log",
    benchmark:
        "work/benchmarks/ladder_tables-{device}.tsv"
    shell:
        "edgeplan stage ladder_tables --device {wildcards.device}"
