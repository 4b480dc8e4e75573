"""Tables and documents that one stage hands to the next, and tables by key beside measured rows: atomic, and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from edgeplan.errors import FormatError
from edgeplan.support.files import read_json, write_atomically, write_text
from edgeplan.support.store import FileFormat, KeyedStore

#: Of tables and documents. One that tells no version is of the first: tables written before they told one are in git and in
#: caches, they are the same but for that, and some hold measurements of machines that are not at hand. Documents and csv tables
#: that people and other programs read (environment.json, metrics.json) tell theirs only when it is no longer 1.
FORMAT_VERSION = 1
_VERSION_KEY = b"edgeplan_table"
#: What to do where something is kept beside the measured rows, so that it is not made twice, and cannot be read.
KEPT = "restore it (git checkout, dvc pull), or remove it and run the same command again: it is then made anew"
_AGAIN = "restore it (git checkout, dvc pull) or run the stage that writes it again (dvc repro)"


class _Document(BaseModel):
    model_config = ConfigDict(extra="allow")

    format_version: object = FORMAT_VERSION


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as compressed Parquet with its format version, atomically."""
    table = pa.Table.from_pandas(frame, preserve_index=False)
    table = table.replace_schema_metadata({**table.schema.metadata, _VERSION_KEY: str(FORMAT_VERSION).encode()})
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd"))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as csv, atomically."""
    write_text(path, frame.to_csv(index=False))


def check_parquet(path: Path, *columns: str, next_step: str = _AGAIN) -> None:
    """Check that a table is there and whole, of this format version, and has the columns that its reader needs."""
    try:
        schema = pq.read_schema(path)  # stands at the end of the file: a truncated one has none
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error, next_step) from error
    _check_version((schema.metadata or {}).get(_VERSION_KEY, b"1").decode(errors="replace"), f"the table {path.stem}", path)
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise FormatError(f"the table {path.stem} lacks the column {missing[0]!r}", where=str(path), next_step=next_step)


def read_parquet(path: Path, *columns: str, next_step: str = _AGAIN) -> pd.DataFrame:
    """Read a table that `write_parquet` wrote, all of it; the columns that are named have to be there."""
    check_parquet(path, *columns, next_step=next_step)
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _unreadable(path, error, next_step) from error


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a csv table; `options` are those of `pandas.read_csv`."""
    try:
        frame: pd.DataFrame = pd.read_csv(path, **options)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error, _AGAIN) from error
    return frame


def read_document(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object, less its format version; the keys that are named have to be there."""
    document = read_json(path, _Document, path.name)
    _check_version(str(document.format_version), path.name, path)
    values = dict(document.model_extra or {})
    missing = [key for key in keys if key not in values]
    if missing:
        raise FormatError(f"{path.name} lacks the key {missing[0]!r}", where=str(path), next_step=_AGAIN)
    return values


def _check_version(found: str, what: str, path: Path) -> None:
    if found != str(FORMAT_VERSION):
        raise FormatError(
            f"{what} is of format version {found}, expected {FORMAT_VERSION}",
            where=str(path),
            next_step="use the edgeplan that wrote it, or run the stage that writes it again (dvc repro)",
        )


def _unreadable(path: Path, error: Exception, next_step: str) -> FormatError:
    number = getattr(error, "errno", None)  # pyarrow's own text for it has the path in it, and more
    reason = os.strerror(number) if number else (str(error).strip() or type(error).__name__).splitlines()[0]
    return FormatError(f"cannot read the table {path.stem}: {reason}", where=str(path), next_step=next_step)


_KEY = "key"
TableStore = KeyedStore[str, pd.DataFrame]


def table_store(folder: Path, *columns: str, later: Mapping[str, float | str] = MappingProxyType({})) -> TableStore:
    """Open a store of tables by key. No merged file is written again, so that git stores it once.

    `later` are columns that tables of before they were kept lack, with their values there.
    """

    def read(path: Path) -> dict[str, pd.DataFrame]:
        found = read_parquet(path, _KEY, *columns, next_step=KEPT)
        found = found.assign(**{name: value for name, value in later.items() if name not in found.columns})
        return {str(key): part.drop(columns=_KEY).reset_index(drop=True) for key, part in found.groupby(_KEY, sort=False)}

    def write(path: Path, tables: Mapping[str, pd.DataFrame]) -> None:
        names = [_KEY, *columns, *later]
        write_parquet(pd.concat([t.assign(**{_KEY: key})[names] for key, t in tables.items()], ignore_index=True), path)

    def newer(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
        return old if new.equals(old) else new

    return KeyedStore(folder, FileFormat(read, write, newer))
