"""Stage `prediction_page`: the chapter of the report, from the tables, figures and figures of merit that `evaluation` wrote."""

from __future__ import annotations

from pathlib import Path

from edgeplan.chapters.prediction.evaluation.page import read_prediction_chapter
from edgeplan.reporting.page import write_chapter


def write_page(
    *, device: str, tables: Path, figures: Path, metrics: Path, environment: Path, models: Path, chapter: Path
) -> None:
    """Write the chapter of a device; nothing is predicted or measured.

    Args:
        device: name of the device.
        tables: folder of tables, with findings and notes.
        figures: folder of figures.
        metrics: figures of merit.
        models: the evaluated models, with their repeats.
        environment: state of the machine that measured the models.
        chapter: where the report finds the chapter.
    """
    found = read_prediction_chapter(
        device, tables=tables, figures=figures, metrics=metrics, environment=environment, models=models
    )
    write_chapter(found, chapter, tables=tables, figures=figures)
