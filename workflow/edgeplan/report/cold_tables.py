"""Stage `cold_tables`: tables, figures, figures of merit and the chapter of the report, from what `cold_start` measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from edgeplan.chapters.cold_start.evaluation.evidence import read_cold_evidence
from edgeplan.chapters.cold_start.evaluation.figures import make_cold_figures
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.tables import make_cold_tables, table_notes, write_cold_tables
from edgeplan.report.cold_report import render_chapter, render_page
from edgeplan.report.stage import remarks_of
from edgeplan.support.files import write_atomically, write_json, write_text
from edgeplan.support.frames import write_csv


def write_cold_start(*, device: str, measured: Path, chapters: Path, remarks: Path) -> None:
    """Write the chapter of a device; nothing is measured.

    Args:
        device: name of the device.
        measured: folder of the stage `cold_start`; tables, figures and a page of its own go there too.
        chapters: folder of what the report of the device takes in: the figures of merit and the chapter.
        remarks: folder of texts written by people, `<device>-cold-start.md`.
    """
    evidence = read_cold_evidence(device, measured)
    measured_at = str(evidence.environment.get("measured_at", "unknown"))
    tables, figures, metrics = make_cold_tables(evidence), make_cold_figures(evidence), cold_metrics(evidence)
    write_cold_tables(tables, table_notes(evidence), measured / "tables", measured_at)
    write_csv(evidence.plans, measured / "tables" / "plans.csv")
    for name, data in figures.items():
        write_atomically(measured / "figures" / f"{name}.png", partial(Path.write_bytes, data=data))
    chapter = render_chapter(
        evidence,
        tables,
        figures,
        metrics,
        remarks_of(remarks, f"{device}-cold-start", measured / "environment.json"),
        measured_at,
    )
    write_json(chapters / "cold_start.json", metrics)
    write_text(chapters / "cold_start.html", chapter)
    write_text(measured / "report.html", render_page(device, chapter))
