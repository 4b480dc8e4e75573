"""Write the self-contained report of a device, and the figures of merit of all its chapters."""

from pathlib import Path

from edgeplan.report.stage import write_report
from stage import stage

with stage(snakemake):
    write_report(
        device=snakemake.wildcards.device,
        tables=Path(snakemake.params.tables),
        figures=Path(snakemake.params.figures),
        chapters=Path(snakemake.params.chapters),
        metrics=Path(snakemake.output.metrics),
        environment=Path(snakemake.input.environment),
        transfer=Path(snakemake.input.transfer),
        remarks=Path(snakemake.params.remarks),
        report=Path(snakemake.output.report),
    )
