"""Rules of the chapter cold_start. Written by `make wire` from workflow/edgeplan/chapters/cold_start/chapter.py; change that."""


rule cold_start:
    """
    Profile models, make plans and execute them beside the stock engines; all that measures is here.
    """
    input:
        "config/devices/{device}.yaml",
        made_here("results/{device}/predictors/card.json"),
    output:
        update("results/{device}/cold/runs.parquet"),
        update("results/{device}/cold/bandwidth.parquet"),
        update("results/{device}/cold/profiles.parquet"),
        update("results/{device}/cold/plans.parquet"),
        update("results/{device}/cold/models.parquet"),
        update("results/{device}/cold/checks.parquet"),
        update("results/{device}/cold/notes.json"),
        update("results/{device}/cold/environment.json"),
    log:
        "work/logs/cold_start-{device}.log",
    benchmark:
        "work/benchmarks/cold_start-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        cold_start=config["cold_start"],
    shell:
        "edgeplan stage cold_start --device {wildcards.device}"


rule cold_tables:
    """
    Its headline figure and cards, findings, figures and tables.
    """
    input:
        "results/{device}/cold/runs.parquet",
        "results/{device}/cold/bandwidth.parquet",
        "results/{device}/cold/profiles.parquet",
        "results/{device}/cold/plans.parquet",
        "results/{device}/cold/models.parquet",
        "results/{device}/cold/checks.parquet",
        "results/{device}/cold/notes.json",
        "results/{device}/cold/environment.json",
    output:
        update("results/chapters/{device}/cold_start.json"),
        update("results/chapters/{device}/cold_start.page.json"),
        report(
            update(directory("results/{device}/cold/tables")),
            patterns=["{shown}.csv"],
            category="Cold starts planned for the first inference: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/cold/figures")),
            patterns=["{shown}.svg"],
            category="Cold starts planned for the first inference: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/cold_tables-{device}.log",
    benchmark:
        "work/benchmarks/cold_tables-{device}.tsv"
    shell:
        "edgeplan stage cold_tables --device {wildcards.device}"


rule cold_gpu:
    """
    Cold starts on a GPU, planned model by model and started in fresh processes; rows are kept by model.
    """
    input:
        "config/devices/{device}.yaml",
    output:
        update("results/{device}/cold_gpu/starts.parquet"),
        update("results/{device}/cold_gpu/plans.parquet"),
        update("results/{device}/cold_gpu/environment.json"),
    log:
        "work/logs/cold_gpu-{device}.log",
    benchmark:
        "work/benchmarks/cold_gpu-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        cold_gpu=config["cold_gpu"],
    shell:
        "edgeplan stage cold_gpu --device {wildcards.device}"


rule cold_gpu_tables:
    """
    What was measured, the figures of merit, tables, a figure and the page of a device.
    """
    input:
        "results/{device}/cold_gpu/starts.parquet",
        "results/{device}/cold_gpu/plans.parquet",
        "results/{device}/cold_gpu/environment.json",
    output:
        update("results/chapters/{device}/cold_gpu.json"),
        update("results/chapters/{device}/cold_gpu.page.json"),
        report(
            update(directory("results/{device}/cold_gpu/tables")),
            patterns=["{shown}.csv"],
            category="Cold starts planned for the first inference: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/cold_gpu/figures")),
            patterns=["{shown}.svg"],
            category="Cold starts planned for the first inference: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/cold_gpu_tables-{device}.log",
    benchmark:
        "work/benchmarks/cold_gpu_tables-{device}.tsv"
    shell:
        "edgeplan stage cold_gpu_tables --device {wildcards.device}"
