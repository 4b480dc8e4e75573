"""Writing tables, atomically."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from edgeplan.files import write_atomically, write_text


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as compressed Parquet, atomically."""
    write_atomically(path, lambda temporary: frame.to_parquet(temporary, compression="zstd", index=False))


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as csv, atomically."""
    write_text(path, frame.to_csv(index=False))
