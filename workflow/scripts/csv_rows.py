"""Rows of the scripts' tables are dataclasses, and files of them CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.support.files import write_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write_rows(kind: type[DataclassInstance], rows: Iterable[DataclassInstance], target: Path) -> None:
    """Write rows of a kind, a column for each field."""
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(kind)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    write_text(target, text.getvalue())
