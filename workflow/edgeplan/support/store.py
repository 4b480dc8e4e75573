"""Stores what was measured or made once: values by key in files, found again for ever.

A store has the verbs of TVM's database of tuning records, `has`, `get`, `query`, `commit` and
`len`, and `merge`, which brings what was committed part by part together in few files. A key is a
digest of all that decides a value (`key_of`), names of measuring protocols among it. A `Journal`
has the same verbs, and is one file with a line a record.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from edgeplan.errors import FormatError, StoreError
from edgeplan.support.files import state_folder, write_text
from edgeplan.writable import cannot_write

Key = TypeVar("Key", bound="str | tuple[str, int]")
Value = TypeVar("Value")
#: Set to any value: never measure, take rows of whatever machine the stores hold.
STORED_ROWS_ONLY = "EDGEPLAN_STORED_ROWS_ONLY"
FORMAT_VERSION = 1
_MERGED = "rows-"
_JOURNAL_SECONDS = 14 * 86400.0
#: Writing a file takes far less: an older temporary file was left by a run that was killed.
_STALE_SECONDS = 10.0


def stored_rows_only() -> bool:
    """Tell whether stored rows alone may be used, and nothing may be measured."""
    return bool(os.environ.get(STORED_ROWS_ONLY))


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol names a way of measuring or computing: what a stored number means, without looking at source files.

    Rows are keyed by its name. A change to the code that cannot change numbers leaves the name, and every stored row is found
    again; a change that can gets a new name, in words (`onnxruntime/2`), and a line in the changelog. Names of hexadecimal
    digits are those of rows that were stored when keys held digests of sources.

    Tables may be built from shipped rows of `earlier` names, too; what is measured anew never counts as theirs.
    """

    name: str
    earlier: tuple[str, ...] = ()

    @property
    def readable(self) -> tuple[str, ...]:
        """Return all names that tables may be built from, the present one first."""
        return (self.name, *self.earlier)


def nothing_stored(what: str, folder: Path) -> StoreError:
    """Make the error where nothing may be measured and something (a sentence) is not stored in a folder."""
    step = f"unset {STORED_ROWS_ONLY} to measure here, or restore them: git checkout -- {folder}"
    return StoreError(f"nothing may be measured, and {what}", where=str(folder), next_step=step)


def key_of(parts: object, digits: int = 12) -> str:
    """Compute the digest of a JSON value: hexadecimal digits, the same on every machine."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:digits]


def journal_of(name: str) -> Path:
    """Name the folder where commits are kept, too: a run in a temporary workspace may be killed."""
    return state_folder() / "journal" / name


def identity_file(folder: Path, key: str) -> Path:
    """Name the file beside rows that holds the readable form of their key."""
    return folder / f"{key}.json"


@dataclass(frozen=True, slots=True)
class FileFormat(Generic[Key, Value]):
    """A form says how values stand in files.

    Attributes:
        read: raises FormatError where a file is damaged or foreign.
        write: is atomic.
        better: says which value of a key counts, of the stored one and another one. It gives the stored one itself where that
            stays; it may also give one made of both.
        most: values of a merged file, so that it can live in git: a file that has fewer is filled up first. With 0 each merge
            writes a new file, however large.
    """

    read: Callable[[Path], Mapping[Key, Value]]
    write: Callable[[Path, Mapping[Key, Value]], object]
    better: Callable[[Value, Value], Value]
    most: int = 0


class KeyedStore(Generic[Key, Value]):
    """A store holds values by key in a folder. Each commit is a file of its own until `merge`.

    Args:
        folder: where the files lie; it may be absent. None keeps values in memory.
        form: how they stand in files.
        prefix: key of the measuring set-up, which file names begin with, where a folder has the files of several.
        identity: readable form of the prefix, kept beside the files; None keeps none.
        journal: another folder, where commits are kept for two weeks, too.
    """

    def __init__(
        self,
        folder: Path | None,
        form: FileFormat[Key, Value],
        prefix: str = "",
        identity: Mapping[str, Any] | None = None,
        journal: Path | None = None,
    ) -> None:
        self.folder, self.key, self.identity = folder, prefix, identity
        self._form, self._begin = form, f"{prefix}-" if prefix else ""
        self._places = tuple(place for place in (journal, folder) if place is not None)
        self._journal = journal
        self._values: dict[Key, Value] = {}
        self._apart: set[Key] = set()  # what no merged file holds
        self._remove_half_written()
        for path in self._files(folder, merged=True):
            self._take(form.read(path))
        for place in reversed(self._places):  # the journal has rows that a killed run left behind
            for path in self._files(place, merged=False):
                self._apart |= self._take(form.read(path))

    def _files(self, place: Path | None, *, merged: bool) -> list[Path]:
        found = sorted(place.glob(f"{self._begin}*.parquet")) if place is not None else []
        start = f"{self._begin}{_MERGED}"
        return [path for path in found if path.name.startswith(start) is merged and not path.name.startswith(".")]

    def _remove_half_written(self) -> None:
        for path in (path for place in self._places for path in place.glob(".*.tmp")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()

    def _take(self, values: Mapping[Key, Value]) -> set[Key]:
        """Take values in as far as they count, and return the keys whose values have changed."""
        changed = set[Key]()
        for key, value in values.items():
            known = self._values.get(key)
            counts = value if known is None else self._form.better(known, value)
            if counts is not known:
                self._values[key] = counts
                changed.add(key)
        return changed

    def __len__(self) -> int:
        return len(self._values)

    def has(self, key: Key) -> bool:
        """Tell whether there is a value of a key."""
        return key in self._values

    def get(self, key: Key) -> Value | None:
        """Return the value of a key, which is not to be changed; None if there is none."""
        return self._values.get(key)

    def query(self) -> Mapping[Key, Value]:
        """Return the values of the store by key."""
        return MappingProxyType(self._values)

    def commit(self, values: Mapping[Key, Value]) -> None:
        """Keep values: they are on the disk, and in the journal, when this returns."""
        name = f"{self._begin}{key_of(sorted(map(str, values)))}.parquet"
        for place in self._places:
            self._form.write(place / name, values)
        self._keep_identity()
        self._apart |= self._take(values)

    def _keep_identity(self) -> None:
        if self.identity is None:
            return
        text = json.dumps({"format_version": FORMAT_VERSION, **self.identity}, indent=2, sort_keys=True) + "\n"
        for path in (identity_file(place, self.key) for place in self._places):
            if not path.is_file() or path.read_text() != text:
                write_text(path, text)

    def merge(self) -> None:
        """Bring commits together, and drop journals that are old enough to be in a workspace."""
        self._remove_half_written()
        if self._journal is not None:
            for path in self._files(self._journal, merged=False):
                if time.time() - path.stat().st_mtime > _JOURNAL_SECONDS:
                    path.unlink()
            if not self._files(self._journal, merged=False):
                identity_file(self._journal, self.key).unlink(missing_ok=True)
        if self.folder is None:
            return
        keys, files = sorted(self._apart), self._files(self.folder, merged=True)
        number = int(files[-1].stem.rpartition("-")[2]) + 1 if files else 0
        if keys and files and len(last := self._form.read(files[-1])) < self._form.most:
            keys, number = [*last, *(key for key in keys if key not in last)], number - 1
        size = self._form.most or max(1, len(keys))
        for start in range(0, len(keys), size):
            values = {key: self._values[key] for key in keys[start : start + size]}
            self._form.write(self.folder / f"{self._begin}{_MERGED}{number + start // size:03d}.parquet", values)
        if keys:
            self._keep_identity()
        self._apart.clear()
        for path in self._files(self.folder, merged=False):
            path.unlink()


class Journal:
    """A journal holds records in a file, a line each: a killed process loses its last line at most.

    A last line that was cut short by a kill is dropped when the journal is opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _drop_cut_line(path)
        except OSError as error:
            raise cannot_write(error, path) from error

    def commit(self, record: Mapping[str, Any]) -> None:
        """Add a record; it is on the disk when this returns."""
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                _append(file, line)
        except OSError as error:
            raise cannot_write(error, self._path) from error

    def query(self) -> Iterator[dict[str, Any]]:
        """Yield the records in the order in which they were added."""
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

    def merge(self, other: Path) -> None:
        """Add the records of another journal that this one lacks, told apart by their keys and when they were measured."""
        if other.is_file():
            known = {(record["key"], record["measured_at"]) for record in self.query()}
            for record in Journal(other).query():
                if (record["key"], record["measured_at"]) not in known:
                    self.commit(record)


def _append(file: FileIO, line: bytes) -> None:
    """Write a line whole and sync it, or leave the file as it was: a disk that gets full takes a part of a line."""
    begin, rest = file.seek(0, os.SEEK_END), memoryview(line)
    try:
        while rest:
            rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(begin)
        raise


def _drop_cut_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("rb+") as file:
        content = file.read()
        end = content.rfind(b"\n") + 1
        if end != len(content):
            file.truncate(end)
