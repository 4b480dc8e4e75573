"""Reads captions: texts beside the chapter, read when a report is written and by no stage that makes a table or figure."""

from __future__ import annotations

from pathlib import Path

from edgeplan.errors import FormatError


def caption(folder: Path, name: str) -> str:
    """Read the caption of a table or figure, as one line.

    Args:
        folder: folder of the captions, one Markdown file each.
        name: id of the table or figure.
    """
    path = folder / f"{name}.md"
    try:
        return " ".join(path.read_text(encoding="utf-8").split())
    except OSError as error:
        raise FormatError(
            f"{name} has no caption", where=str(path), next_step="write what it shows, and in which units"
        ) from error
