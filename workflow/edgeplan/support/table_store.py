"""Tables by key hold what is made once beside the measured rows, as plans and checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from edgeplan.support.frames import KEPT, read_parquet, write_parquet
from edgeplan.support.store import FileFormat, KeyedStore

_KEY = "key"
TableStore = KeyedStore[str, pd.DataFrame]


def table_store(folder: Path, *columns: str, later: Mapping[str, float | str] = MappingProxyType({})) -> TableStore:
    """Open a store of tables by key. No merged file is written again, so that git stores it once.

    Args:
        folder: where the files lie; it may be absent.
        columns: columns of every table, besides its key.
        later: columns that tables of before they were kept lack, with their values there.
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
