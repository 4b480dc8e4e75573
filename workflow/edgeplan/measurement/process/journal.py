"""An append-only journal, one JSON document a line: a killed process loses at most the line it was writing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeplan.errors import FormatError
from edgeplan.writable import cannot_write


class Journal:
    """A journal on disk holds one record a line.

    Args:
        path: the file; its folder is made. A last line that was cut short by a kill is dropped when the journal is opened.

    Raises:
        StoreError: it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_cut_line(path)
        except OSError as error:
            raise cannot_write(error, path) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record; it is on the disk when this returns.

        Raises:
            StoreError: it cannot be written.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(line)
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(error, self._path) from error

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield all records in the order they were added.

        Raises:
            FormatError: a line is not JSON.
        """
        if not self._path.is_file():
            return
        with self._path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise FormatError(
                        f"line {number} of the journal is not JSON: {error}",
                        where=str(self._path),
                        next_step="delete that line; its run is measured again",
                    ) from error
                yield record


def _drop_cut_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            file.truncate(end)
