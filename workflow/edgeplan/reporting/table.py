"""This module writes a table to files and reads its cells back."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.support.files import write_text

_AGAIN = "run the stage that writes it again (dvc repro)"


def cell_text(value: Any) -> str:
    """Return a cell as people read it: four significant digits, nothing for a missing value."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None or value is pd.NA:
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
    """Return a table in Markdown; numbers are aligned to the right."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rules = ["---:" if pd.api.types.is_numeric_dtype(frame[c]) else "---" for c in frame.columns]
    rows = [[cell_text(v) for v in row] for row in frame.itertuples(index=False, name=None)]
    return "\n".join([line([str(c) for c in frame.columns]), "|" + "|".join(rules) + "|", *(line(row) for row in rows)]) + "\n"


#: What stands between two cells; a bar within a cell is escaped.
_BETWEEN = re.compile(r"(?<!\\)\|")


def read_markdown(path: Path) -> tuple[tuple[str, ...], tuple[bool, ...], tuple[tuple[str, ...], ...]]:
    """Read the cells of a table that `markdown` wrote, as people read them.

    Returns:
        Its columns, which of them are of numbers, and its rows.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot read the table {path.stem}: {error}", where=str(path), next_step=_AGAIN) from error
    cells = [tuple(cell.strip().replace("\\|", "|") for cell in _BETWEEN.split(line)[1:-1]) for line in lines]
    if len(cells) < 2 or any(len(row) != len(cells[0]) for row in cells):  # names and rules
        raise FormatError(f"{path.name} holds no table", where=str(path), next_step=_AGAIN)
    return cells[0], tuple(rule.endswith(":") for rule in cells[1]), tuple(cells[2:])


def write_table(frame: pd.DataFrame, path_stem: Path, title: str, note: str, measured_at: str) -> tuple[Path, Path]:
    """Write a table as csv (for programs, with a column `measured_at`) and md (for people).

    Args:
        frame: the table.
        path_stem: path without suffix.
        title: one line.
        note: what the data say of it besides; its caption stands in the report.
        measured_at: when its measurements were made, as text.

    Returns:
        The two files.
    """
    # A stem may hold a dot (a device name): `with_suffix` would cut there.
    csv, md = (path_stem.with_name(f"{path_stem.name}.{suffix}") for suffix in ("csv", "md"))
    text = frame.assign(measured_at=measured_at).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(csv, text)
    said = f"{note}\n\n" if note else ""
    write_text(md, f"# {title}\n\n{said}{markdown(frame)}\nMeasured: {measured_at}\n")
    return csv, md
