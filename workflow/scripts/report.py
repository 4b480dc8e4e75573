"""Write the self-contained report of a device."""

from pathlib import Path

from edgeplan.pipeline.report import write_report
from stage import stage

with stage(snakemake):
    write_report(
        device=snakemake.wildcards.device,
        tables=Path(snakemake.params.tables),
        figures=Path(snakemake.params.figures),
        metrics=Path(snakemake.input.metrics),
        environment=Path(snakemake.input.environment),
        transfer=Path(snakemake.input.transfer),
        remarks=Path(snakemake.params.remarks),
        report=Path(snakemake.output.report),
    )
