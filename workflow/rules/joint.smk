"""Rules of the chapter joint. Written by `make wire` from workflow/edgeplan/chapters/joint/chapter.py; change that."""


rule joint:
    """
    Models planned within a budget and started by all ways, model by model.
    """
    input:
        "config/devices/{device}.yaml",
    output:
        update("results/{device}/joint/starts.parquet"),
        update("results/{device}/joint/environment.json"),
    log:
        "work/logs/joint-{device}.log",
    benchmark:
        "work/benchmarks/joint-{device}.tsv"
    threads: cores_taken
    resources:
        device=measuring_here,
        gres=machine_asked,
    params:
        seed=config["seed"],
        joint=config["joint"],
    shell:
        "edgeplan stage joint --device {wildcards.device}"


rule joint_tables:
    """
    Figures of merit, the tables and the page of a device.
    """
    input:
        "results/{device}/joint/starts.parquet",
        "results/{device}/joint/environment.json",
    output:
        update("results/chapters/{device}/joint.json"),
        update("results/chapters/{device}/joint.page.json"),
        report(
            update(directory("results/{device}/joint/tables")),
            patterns=["{shown}.csv"],
            category="First inferences within a budget: tables",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
        report(
            update(directory("results/{device}/joint/figures")),
            patterns=["{shown}.svg"],
            category="First inferences within a budget: figures",
            subcategory="{device}",
            labels={"id": "{shown}"},
        ),
    log:
        "work/logs/joint_tables-{device}.log",
    benchmark:
        "work/benchmarks/joint_tables-{device}.tsv"
    shell:
        "edgeplan stage joint_tables --device {wildcards.device}"
