include: "common.smk"


rule cold_tables:
    input:
        runs="results/{device}/cold/runs.parquet",
        bandwidth="results/{device}/cold/bandwidth.parquet",
        profiles="results/{device}/cold/profiles.parquet",
        plans="results/{device}/cold/plans.parquet",
        models="results/{device}/cold/models.parquet",
        checks="results/{device}/cold/checks.parquet",
        spans="results/{device}/cold/spans.parquet",
        energy="results/{device}/cold/energy.parquet",
        notes="results/{device}/cold/notes.json",
        environment="results/{device}/cold/environment.json",
    output:
        metrics="results/{device}/chapters/cold_start.json",
        chapter="results/{device}/chapters/cold_start.page.json",
        page="results/{device}/cold/report.html",
    log:
        "work/logs/cold_tables-{device}.log",
    params:
        remarks="docs/remarks",
    script:
        "scripts/cold_tables.py"
