"""Rules of the chapter partition. Written by `make wire` from workflow/edgeplan/chapters/partition/chapter.py; change that."""


rule partition_checked:
    """
    Models planned by their own sweeps on a pair, and all ways to run them on fresh runs.
    """
    input:
        "config/pairs/{pair}.yaml",
    output:
        update("results/{pair}/partition/checked/checked.parquet"),
        update("results/{pair}/partition/checked/later.parquet"),
        update("results/{pair}/partition/checked/environment.json"),
    log:
        "work/logs/partition_checked-{pair}.log",
    benchmark:
        "work/benchmarks/partition_checked-{pair}.tsv"
    threads: workflow.cores
    resources:
        device=1,
        gres="device:local:1",
    params:
        seed=config["seed"],
        partition=config["partition"],
    shell:
        "edgeplan stage partition_checked --pair {wildcards.pair}"


rule partition_checked_tables:
    """
    What was measured of them, the figures of merit, the table and the page of a pair.
    """
    input:
        "results/{pair}/partition/checked/checked.parquet",
        "results/{pair}/partition/checked/later.parquet",
        "results/{pair}/partition/checked/environment.json",
    output:
        update("results/chapters/{pair}/partition_checked.json"),
        update("results/chapters/{pair}/partition_checked.page.json"),
        report(
            update(directory("results/{pair}/partition/checked/tables")),
            patterns=["{shown}.csv"],
            category="One model on two processors: tables",
            subcategory="{pair}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/partition_checked_tables-{pair}.log",
    benchmark:
        "work/benchmarks/partition_checked_tables-{pair}.tsv"
    shell:
        "edgeplan stage partition_checked_tables --pair {wildcards.pair}"


rule partition:
    """
    Samples, predictors, splits of layers, models end to end, handshakes; all that measures is here.
    """
    input:
        "config/pairs/{pair}.yaml",
    output:
        update("results/{pair}/partition/predictors/card.json"),
        update("results/{pair}/partition/samples.parquet"),
        update("results/{pair}/partition/layers.parquet"),
        update("results/{pair}/partition/models.parquet"),
        update("results/{pair}/partition/handshakes.parquet"),
        update("results/{pair}/partition/curves.parquet"),
        update("results/{pair}/partition/errors.parquet"),
        update("results/{pair}/partition/importance.parquet"),
        update("results/{pair}/partition/environment.json"),
    log:
        "work/logs/partition-{pair}.log",
    benchmark:
        "work/benchmarks/partition-{pair}.tsv"
    threads: workflow.cores
    resources:
        device=1,
        gres="device:local:1",
    params:
        seed=config["seed"],
        partition=config["partition"],
    shell:
        "edgeplan stage partition --pair {wildcards.pair}"


rule partition_tables:
    """
    Its headline figure and cards, findings, figures and tables.
    """
    input:
        "results/{pair}/partition/layers.parquet",
        "results/{pair}/partition/models.parquet",
        "results/{pair}/partition/handshakes.parquet",
        "results/{pair}/partition/curves.parquet",
        "results/{pair}/partition/errors.parquet",
        "results/{pair}/partition/importance.parquet",
        "results/{pair}/partition/environment.json",
    output:
        update("results/chapters/{pair}/partition.json"),
        update("results/chapters/{pair}/partition.page.json"),
        report(
            update(directory("results/{pair}/partition/tables")),
            patterns=["{shown}.csv"],
            category="One model on two processors: tables",
            subcategory="{pair}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{pair}/partition/figures")),
            patterns=["{shown}.svg"],
            category="One model on two processors: figures",
            subcategory="{pair}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/partition_tables-{pair}.log",
    benchmark:
        "work/benchmarks/partition_tables-{pair}.tsv"
    shell:
        "edgeplan stage partition_tables --pair {wildcards.pair}"


rule partition_eop:
    """
    Operators sampled and swept, every way to run EOP's models; all that measures is here.
    """
    input:
        "config/pairs/{pair}.yaml",
        "results/{pair}/partition/predictors/card.json",
    output:
        update("results/{pair}/partition/eop/sampled.parquet"),
        update("results/{pair}/partition/eop/sweeps.parquet"),
        update("results/{pair}/partition/eop/plans.parquet"),
        update("results/{pair}/partition/eop/key.parquet"),
        update("results/{pair}/partition/eop/environment.json"),
    log:
        "work/logs/partition_eop-{pair}.log",
    benchmark:
        "work/benchmarks/partition_eop-{pair}.tsv"
    threads: workflow.cores
    resources:
        device=1,
        gres="device:local:1",
    params:
        seed=config["seed"],
        partition=config["partition"],
    shell:
        "edgeplan stage partition_eop --pair {wildcards.pair}"


rule partition_eop_tables:
    """
    Cards, findings, figures and tables.
    """
    input:
        "results/{pair}/partition/eop/sampled.parquet",
        "results/{pair}/partition/eop/sweeps.parquet",
        "results/{pair}/partition/eop/plans.parquet",
        "results/{pair}/partition/eop/key.parquet",
        "results/{pair}/partition/eop/environment.json",
    output:
        update("results/chapters/{pair}/partition_eop.json"),
        update("results/chapters/{pair}/partition_eop.page.json"),
        report(
            update(directory("results/{pair}/partition/eop/tables")),
            patterns=["{shown}.csv"],
            category="One model on two processors: tables",
            subcategory="{pair}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{pair}/partition/eop/figures")),
            patterns=["{shown}.svg"],
            category="One model on two processors: figures",
            subcategory="{pair}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/partition_eop_tables-{pair}.log",
    benchmark:
        "work/benchmarks/partition_eop_tables-{pair}.tsv"
    shell:
        "edgeplan stage partition_eop_tables --pair {wildcards.pair}"
