"""This module writes the tables of the chapter and reads them back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from edgeplan.chapters.prediction.evaluation.dates import measured, together
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.errors import FormatError
from edgeplan.reporting import kit
from edgeplan.reporting.table import read_table
from edgeplan.support.files import write_json

#: Files beside the tables. What the captions add from the data, by id of the table.
NOTES = "notes.json"
#: Where predictions miss and why, a list of texts.
FINDINGS = "findings.json"


def read_tables(folder: Path) -> tuple[dict[str, pd.DataFrame], str]:
    """Tables that `write_tables` wrote, by id in the order of `TABLES`, and when they were measured ("" when there are none).

    Raises:
        FormatError: two tables name different dates for the same measuring stage.
    """
    read = {name: read_table(path) for name in TABLES if (path := folder / f"{name}.csv").is_file()}
    text, differing = together(measured_at for _, measured_at in read.values())
    if differing:
        raise FormatError(
            f"tables of different measurements (stage {', '.join(differing)}): {text}",
            where=str(folder),
            next_step="run the evaluation stage again",
        )
    return {name: frame for name, (frame, _) in read.items()}, text


def write_tables(evidence: Evidence, folder: Path, ranges: Mapping[str, str]) -> dict[str, pd.DataFrame]:
    """Make and write every table whose inputs are there; returns them by id.

    Args:
        evidence: of the device.
        folder: where they go.
        ranges: when each measuring stage measured, see `edgeplan.chapters.prediction.evaluation.dates.ranges`.
    """
    tables, _ = kit.make(TABLES, evidence)
    notes = kit.notes(TABLES, evidence, tables)
    kit.write_tables(TABLES, tables, notes, {name: measured(TABLES[name], ranges) for name in tables}, folder)
    write_json(folder / NOTES, notes)
    return tables
