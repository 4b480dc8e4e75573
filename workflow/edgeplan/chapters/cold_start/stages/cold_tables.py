"""Stage `cold_tables`: tables, figures, figures of merit and the chapter of the report, from what `cold_start` measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from edgeplan.chapters.cold_start.evaluation.evidence import read_cold_evidence
from edgeplan.chapters.cold_start.evaluation.figures import make_cold_figures
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.page import cold_chapter
from edgeplan.chapters.cold_start.evaluation.tables import make_cold_tables, table_notes, write_cold_tables
from edgeplan.reporting.page import write_chapter
from edgeplan.support.files import write_atomically, write_json
from edgeplan.support.frames import write_csv


def write_cold_start(*, device: str, measured: Path, metrics: Path, chapter: Path) -> None:
    """Write the chapter of a device; nothing is measured.

    Args:
        device: name of the device.
        measured: folder of the stage `cold_start`; tables and figures go there too.
        metrics: where the figures of merit go.
        chapter: where the report finds the chapter.
    """
    evidence = read_cold_evidence(device, measured)
    measured_at = str(evidence.environment.get("measured_at", "unknown"))
    tables, figures, found = make_cold_tables(evidence), make_cold_figures(evidence), cold_metrics(evidence)
    write_cold_tables(tables, table_notes(evidence), measured / "tables", measured_at)
    write_csv(evidence.plans, measured / "tables" / "plans.csv")
    for name, data in figures.items():
        write_atomically(measured / "figures" / f"{name}.svg", partial(Path.write_bytes, data=data))
    write_json(metrics, found)
    write_chapter(cold_chapter(evidence, tables, figures, found, measured_at), chapter)
