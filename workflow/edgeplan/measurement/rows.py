"""Stores measurements as rows of Parquet files: every one once, for ever.

A row is keyed by everything that decides it (engine and version, device settings, measuring settings, machine fingerprint,
measuring protocol) and by its subject and sample. Of two rows of a subject the newer one counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError
from edgeplan.measurement.records import COLUMNS, Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.files import write_atomically
from edgeplan.support.store import FORMAT_VERSION, FileFormat, KeyedStore, journal_of

_FLOATS, _TIMES = pa.list_(pa.float32()), COLUMNS[:-1]
_SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("sample", pa.int32()),
        *((name, _FLOATS) for name in _TIMES),
        ("measured_at", pa.list_(pa.float64())),
        ("nodes", pa.list_(pa.string())),
        ("node_us", _FLOATS),
        ("seconds", pa.float32()),
    ],
    metadata={"edgeplan_rows": str(FORMAT_VERSION)},
)
_MAX_ROWS_PER_FILE = 2000
#: Subject and sample, and what was measured of them.
RowStore = KeyedStore[tuple[str, int], Mapping[str, Any]]


def row_store(folder: Path, key: str, identity: Mapping[str, Any]) -> RowStore:
    """Open the store of the measurements of one set-up, in a folder (`data/rows/<device>/<stage>`) shared with others."""

    def read(path: Path) -> dict[tuple[str, int], Mapping[str, Any]]:
        return {(row["subject"], row["sample"]): row for row in read_rows(path)}

    def write(path: Path, rows: Mapping[tuple[str, int], Mapping[str, Any]]) -> None:
        write_rows(path, rows.values())

    def newer(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
        return new if new["measured_at"][0] > old["measured_at"][0] else old

    return KeyedStore(folder, FileFormat(read, write, newer, _MAX_ROWS_PER_FILE), key, identity, journal_of(folder.name))


def measurement_of(row: Mapping[str, Any], nominal: ReferenceTimes, exponents: ReferenceExponents) -> Measurement:
    """Make a measurement of a stored row, normalised as asked."""
    nodes = tuple(EngineNode(**{**json.loads(n), "members": tuple(json.loads(n)["members"])}) for n in row["nodes"])
    blocks = len(row["least_us"])
    return Measurement(
        subject=row["subject"],
        sample=row["sample"],
        nodes=nodes,
        node_us=np.array(row["node_us"], dtype=np.float64).reshape(blocks, len(nodes)),
        nominal=nominal,
        exponents=exponents,
        seconds=float(row["seconds"]),
        **{name: np.array(row[name], dtype=np.float64) for name in COLUMNS},
    )


def row_of(m: Measurement) -> dict[str, Any]:
    """Make the row of a measurement, rounded as the file rounds: a resumed run computes from the same numbers."""
    nodes = [json.dumps({f: getattr(n, f) for f in EngineNode.__slots__}, separators=(",", ":")) for n in m.nodes]
    return {
        "subject": m.subject,
        "sample": m.sample,
        **{name: getattr(m, name).astype(np.float32) for name in _TIMES},
        "measured_at": m.measured_at,
        "nodes": nodes,
        "node_us": m.node_us.ravel().astype(np.float32),
        "seconds": np.float32(m.seconds),
    }


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to one Parquet file, atomically."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=_SCHEMA)
    write_atomically(path, lambda temporary: pq.write_table(table, temporary, compression="zstd", compression_level=9))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of one Parquet file."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise FormatError(
            f"not a readable row file: {error}", where=str(path), next_step="restore it: git checkout or dvc pull"
        ) from error
    version = (table.schema.metadata or {}).get(b"edgeplan_rows", b"none").decode()
    if version != str(FORMAT_VERSION):
        raise FormatError(
            f"rows of format version {version}, expected {FORMAT_VERSION}",
            where=str(path),
            next_step="use the edgeplan that wrote it, or move the file away and measure again",
        )
    return list(table.to_pylist())
