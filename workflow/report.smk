include: "common.smk"


rule report:
    input:
        metrics="results/{device}/metrics.json",
        environment="results/{device}/evaluation/environment.json",
        transfer="results/transfer/table_11.csv",
    output:
        report="results/{device}/report.html",
    log:
        "work/logs/report-{device}.log",
    params:
        tables="results/{device}/tables",
        figures="results/{device}/figures",
        remarks="docs/remarks",
    script:
        "scripts/report.py"
