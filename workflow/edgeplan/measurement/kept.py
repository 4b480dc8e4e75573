"""Kept tables are made once beside the measured rows, and found again by key: plans, checks of outputs, timelines.

A table is added as a file of its own, so that a killed run keeps it. `merge` brings these files together into one more
numbered file; what was merged before is never written again, so that git stores it once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from edgeplan.support.frames import KEPT, read_parquet, write_parquet

_KEY = "key"
_MERGED = "rows-"


class KeptTables:
    """Tables by key, in a few Parquet files of a folder.

    Args:
        folder: where the files lie; it may be absent.
        columns: of every table, besides its key.
        later: columns that tables of before they were kept lack, with the value that stands for them there.

    Raises:
        FormatError: a file is damaged, of another format version, or lacks a column.
    """

    def __init__(self, folder: Path, *columns: str, later: Mapping[str, float | str] = MappingProxyType({})) -> None:
        self._folder, self._columns, self._later = folder, (*columns, *later), later
        self._tables: dict[str, pd.DataFrame] = {}
        self._apart: list[str] = []
        for path in self._merged():
            self._read(path)
        for path in self._alone():
            self._apart += self._read(path)

    def _read(self, path: Path) -> list[str]:
        """Read the tables of a file; of two tables of a key the one written last counts.

        Returns:
            The keys that are new here, or whose tables are.
        """
        first = [name for name in self._columns if name not in self._later]
        read = read_parquet(path, _KEY, *first, next_step=KEPT)
        read = read.assign(**{name: value for name, value in self._later.items() if name not in read.columns})
        found = {str(key): part.drop(columns=_KEY).reset_index(drop=True) for key, part in read.groupby(_KEY, sort=False)}
        new = [key for key, table in found.items() if key not in self._tables or not table.equals(self._tables[key])]
        self._tables |= found
        return new

    def _merged(self) -> list[Path]:
        return sorted(self._folder.glob(f"{_MERGED}*.parquet"))

    def _alone(self) -> list[Path]:
        return sorted(path for path in self._folder.glob("[!.]*.parquet") if not path.name.startswith(_MERGED))

    @property
    def keys(self) -> frozenset[str]:
        """Return the set of keys."""
        return frozenset(self._tables)

    def get(self, key: str) -> pd.DataFrame | None:
        """The table of a key, its rows in the order in which they were added; None if there is none."""
        found = self._tables.get(key)
        return None if found is None else found.copy()

    def add(self, key: str, table: pd.DataFrame) -> None:
        """Keep a table that has at least one row.

        Args:
            key: part of a file's name; a table that it has already no longer counts.
            table: with the columns of the store.

        Raises:
            StoreError: it could not be written.
        """
        self._tables[key] = table[list(self._columns)].reset_index(drop=True)
        if key not in self._apart:
            self._apart.append(key)
        write_parquet(self._keyed(key), self._folder / f"{key}.parquet")

    def _keyed(self, key: str) -> pd.DataFrame:
        table = self._tables[key]
        return table.assign(**{_KEY: key})[[_KEY, *self._columns]]

    def merge(self) -> None:
        """Bring the tables that were added one by one together in one file.

        Raises:
            StoreError: it could not be written.
        """
        if self._apart:
            path = self._folder / f"{_MERGED}{len(self._merged()):03d}.parquet"
            write_parquet(pd.concat([self._keyed(key) for key in self._apart], ignore_index=True), path)
        self._apart.clear()
        for path in self._alone():
            path.unlink()
