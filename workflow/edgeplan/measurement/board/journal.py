"""Keeps the journal of a board: each row is in it, synced, before it is sent, so that a link that is cut loses none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from edgeplan.errors import FormatError
from edgeplan.measurement.board.wire import BatchId, MeasuredRow
from edgeplan.support.files import state_folder
from edgeplan.support.store import Journal

#: Rows that nobody has asked for since then are in a host's store, or wanted no more.
_KEPT_SECONDS = 14 * 86400.0


class JournalLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds a row, and the batch that it was measured for."""

    batch: BatchId
    row: MeasuredRow


#: Reads a line.
_LINE = msgspec.json.Decoder(JournalLine)


class BoardJournal:
    """Keeps the rows of one key of a device that this board has measured, by whichever worker."""

    def __init__(self, device: str, key: str) -> None:
        self.path = journal_folder() / device / f"{key}.jsonl"
        _delete_old(self.path.parent)
        self._journal: Journal | None = None
        self._lines = list[JournalLine]()
        self._read_bytes = 0
        self._look()
        #: Numbers of the lines that the host knows of, or has been told of before this worker began.
        self._told = set(range(len(self._lines)))

    def kept(self, names: Iterable[str], sample: int) -> list[MeasuredRow]:
        """Find the last row of each name; the host knows all rows from now on."""
        self._look()
        self._told = set(range(len(self._lines)))
        return list(self._last(self._told, set(names), sample).values())

    def of_batch(self, batch: str, names: Sequence[str], sample: int) -> list[MeasuredRow]:
        """Find what was measured for a batch, and what another worker has measured since the host asked.

        The latter is the work of a worker that lost its host: it ended its batch alone.
        """
        self._look()
        own = {number for number, line in enumerate(self._lines) if line.batch == batch}
        others = set(range(len(self._lines))) - self._told
        found = {**self._last(others, set(names), sample), **self._last(own, set(names), sample)}
        self._told |= {n for n in others if self._lines[n].row.name in found and self._lines[n].row.sample == sample}
        return list(found.values())

    def commit(self, batch: str, rows: Sequence[MeasuredRow]) -> None:
        """Keep rows: each is on the disk when this returns. The caller holds the board."""
        if self._journal is None:  # not before: it takes back half a line, which another worker may be writing
            self._journal = Journal(self.path)
        for row in rows:
            self._journal.commit(msgspec.to_builtins(JournalLine(batch, row)))
        self._look()
        self._told |= {number for number, line in enumerate(self._lines) if line.batch == batch}

    def _last(self, numbers: Iterable[int], names: set[str], sample: int) -> Mapping[str, MeasuredRow]:
        rows = (self._lines[number].row for number in sorted(numbers))
        return {row.name: row for row in rows if row.sample == sample and row.name in names}

    def _look(self) -> None:
        """Read the lines that were added since the last look."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        try:
            self._lines += map(_LINE.decode, whole.splitlines())
        except msgspec.DecodeError as error:
            raise FormatError(
                f"the journal of the board is damaged: {error}",
                where=str(self.path),
                next_step="delete that file on the board; what no host has is measured again",
            ) from error
        self._read_bytes += len(whole)


def journal_folder() -> Path:
    """Name the folder of all journals of this board."""
    return state_folder() / "worker"


def _delete_old(folder: Path) -> None:
    for path in folder.glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                path.unlink()
