"""Rules of the chapter memory. Written by `make wire` from workflow/edgeplan/chapters/memory/chapter.py; change that."""


rule memory:
    """
    Plans for budgets of memory, run beside stock engines; all that measures is here.
    """
    input:
        "config/devices/{device}.yaml",
    output:
        update("results/{device}/memory/runs.parquet"),
        update("results/{device}/memory/environment.json"),
    log:
        "work/logs/memory-{device}.log",
    benchmark:
        "work/benchmarks/memory-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        memory=config["memory"],
    shell:
        "edgeplan stage memory --device {wildcards.device}"


rule memory_tables:
    """
    Its headline figure and cards, findings, figures and tables.
    """
    input:
        "results/{device}/memory/runs.parquet",
        "results/{device}/memory/environment.json",
    output:
        update("results/chapters/{device}/memory.json"),
        update("results/chapters/{device}/memory.page.json"),
        report(
            update(directory("results/{device}/memory/tables")),
            patterns=["{shown}.csv"],
            category="Models in a fraction of their memory: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/memory/figures")),
            patterns=["{shown}.svg"],
            category="Models in a fraction of their memory: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/memory_tables-{device}.log",
    benchmark:
        "work/benchmarks/memory_tables-{device}.tsv"
    shell:
        "edgeplan stage memory_tables --device {wildcards.device}"
