"""How tables are made, written and read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.evaluation.artifacts import Evidence, Shown
from edgeplan.evaluation.dates import measured, together
from edgeplan.evaluation.metrics import require
from edgeplan.evaluation.registry import TABLES
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_csv

#: File beside the tables: what the captions add from the data, by id of the table.
NOTES = "notes.json"


def make_tables(evidence: Evidence) -> dict[str, pd.DataFrame]:
    """Every table whose inputs are there, by id, in the order of `TABLES`."""
    return {name: table.function(evidence) for name, table in TABLES.items() if table.possible(evidence)}


def cell_text(value: Any) -> str:
    """A cell as people read it: four significant digits, nothing for a missing value."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None:
        return ""
    if not isinstance(value, float | np.floating):
        return str(value)
    number = float(value)
    if math.isnan(number):
        return ""
    digits = max(0, 3 - math.floor(math.log10(abs(number)))) if number and math.isfinite(number) else 0
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def markdown(frame: pd.DataFrame) -> str:
    """A table in Markdown; numbers are aligned to the right."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rules = ["---:" if pd.api.types.is_numeric_dtype(frame[c]) else "---" for c in frame.columns]
    rows = [[cell_text(v) for v in row] for row in frame.itertuples(index=False, name=None)]
    return "\n".join([line([str(c) for c in frame.columns]), "|" + "|".join(rules) + "|", *(line(row) for row in rows)]) + "\n"


def write_table(frame: pd.DataFrame, path_stem: Path, title: str, caption: str, measured_at: str) -> tuple[Path, Path]:
    """Write a table as csv (for programs, with a column `measured_at`) and md (for people).

    Args:
        frame: the table.
        path_stem: path without suffix.
        title: one line.
        caption: what it shows.
        measured_at: when its measurements were made, as text.

    Returns:
        The two files.
    """
    # A stem may hold a dot (a device name): `with_suffix` would cut there.
    csv, md = (path_stem.with_name(f"{path_stem.name}.{suffix}") for suffix in ("csv", "md"))
    text = frame.assign(measured_at=measured_at).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(csv, text)
    write_text(md, f"# {title}\n\n{caption}\n\n{markdown(frame)}\nMeasured: {measured_at}\n")
    return csv, md


def read_table(csv: Path) -> tuple[pd.DataFrame, str]:
    """A table that `write_table` wrote, and when it was measured.

    Raises:
        FormatError: it cannot be read, or does not tell when it was measured.
    """
    # Only an empty cell is missing: a cell may well read "none".
    frame = read_csv(csv, keep_default_na=False, na_values=[""], dtype={"measured_at": str})
    require(frame, ("measured_at",), str(csv))
    return frame.drop(columns="measured_at"), next(iter(frame["measured_at"]), "")


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
        ranges: when each measuring stage measured, see `edgeplan.evaluation.dates.ranges`.
    """
    tables = make_tables(evidence)
    notes = {name: note(evidence) for name in tables if (note := TABLES[name].note)}
    for name, frame in tables.items():
        caption = captioned(TABLES[name], notes)
        write_table(frame, folder / name, TABLES[name].title, caption, measured(TABLES[name], ranges))
    write_json(folder / NOTES, notes)
    return tables


def captioned(shown: Shown, notes: Mapping[str, str]) -> str:
    """The caption of a table, with what the data adds to it.

    Args:
        shown: the table.
        notes: as written by `write_tables` to the file `NOTES`: by id of the table.
    """
    return f"{shown.caption} {notes.get(shown.id, '')}".rstrip()
