include: "common.smk"


rule report:
    input:
        chapters=chapters_of,
        environment="results/{device}/evaluation/environment.json",
        transfer="results/transfer/table_11.csv",
    output:
        metrics="results/{device}/metrics.json",
        report="results/{device}/report.html",
    log:
        "work/logs/report-{device}.log",
    params:
        tables="results/{device}/tables",
        figures="results/{device}/figures",
        chapters="results/{device}/chapters",
        remarks="docs/remarks",
    script:
        "scripts/report.py"
