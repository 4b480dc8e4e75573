"""Stage `cold_tables`: tables, figures, figures of merit and the chapter of the report, from what `cold_start` measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from edgeplan.evaluation.chapter import SUFFIX, write_chapter
from edgeplan.evaluation.cold_evidence import read_cold_evidence
from edgeplan.evaluation.cold_figures import make_cold_figures
from edgeplan.evaluation.cold_metrics import cold_metrics
from edgeplan.evaluation.cold_report import cold_chapter
from edgeplan.evaluation.cold_tables import make_cold_tables, table_captions, write_cold_tables
from edgeplan.evaluation.pages import render_page
from edgeplan.files import write_atomically, write_json, write_text
from edgeplan.frames import write_csv
from edgeplan.pipeline.report import machine_of, remarks_of


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
    write_cold_tables(tables, table_captions(evidence), measured / "tables", measured_at)
    write_csv(evidence.plans, measured / "tables" / "plans.csv")
    for name, data in figures.items():
        write_atomically(measured / "figures" / f"{name}.svg", partial(Path.write_bytes, data=data))
    chapter = cold_chapter(
        evidence,
        tables,
        figures,
        metrics,
        remarks_of(remarks, f"{device}-cold-start", measured / "environment.json"),
        measured_at,
    )
    write_json(chapters / "cold_start.json", metrics)
    write_chapter(chapter, chapters / f"cold_start{SUFFIX}")
    write_text(measured / "report.html", render_page(device, machine_of(evidence.environment), [chapter]))
