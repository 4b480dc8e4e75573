"""Write tables, figures and the chapter on cold starts of a device."""

from pathlib import Path

from edgeplan.report.cold_tables import write_cold_start
from stage import stage

with stage(snakemake):
    write_cold_start(
        device=snakemake.wildcards.device,
        measured=Path(snakemake.input.runs).parent,
        chapters=Path(snakemake.output.metrics).parent,
        remarks=Path(snakemake.params.remarks),
    )
