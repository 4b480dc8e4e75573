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
        chapter="results/{device}/chapters/cold_start.html",
        page="results/{device}/cold/report.html",
        # `snakemake --report` shows what these folders hold.
        tables=report(
            directory("results/{device}/cold/tables"),
            patterns=["{table}.csv"],
            category="Cold start: tables",
            subcategory="{device}",
            labels={"table": "{table}"},
        ),
        figures=report(
            directory("results/{device}/cold/figures"),
            patterns=["{figure}.png"],
            category="Cold start: figures",
            subcategory="{device}",
            labels={"figure": "{figure}"},
        ),
    log:
        "work/logs/cold_tables-{device}.log",
    params:
        remarks="docs/remarks",
    script:
        "scripts/cold_tables.py"
