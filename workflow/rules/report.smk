"""Rules of the report. Written by `make wire` from workflow/edgeplan/chapters/registry.py; change that."""


rule report:
    """
    Write one page of all devices and pairs, and the figures of merit of each in one file.
    """
    input:
        [] if CURRENT else list(parts_of_report(config)),
    output:
        update("results/report.html"),
        update(merged_figures(config)),
    log:
        "work/logs/report.log",
    benchmark:
        "work/benchmarks/report.tsv"
    params:
        devices=config["devices"],
        unseen_devices=config["unseen"]["devices"],
        transfer=config["transfer"],
        cold_start_devices=config["cold_start"]["devices"],
        cold_gpu_devices=config["cold_gpu"]["devices"],
        memory_devices=config["memory"]["devices"],
        partition_checked_pairs=config["partition"]["checked_pairs"],
        partition_pairs=config["partition"]["pairs"],
    shell:
        "edgeplan stage report"
