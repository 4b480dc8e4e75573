"""Stores measurements as rows of Parquet files: every one once, for ever; also those that another machine has collected.

A row is keyed by everything that decides it (engine and version, device settings, measuring settings, machine fingerprint,
measuring protocol) and by its subject and sample. Of two rows of a subject the newer one counts.
"""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict

from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError
from edgeplan.measurement.records import COLUMNS, Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.files import read_json, write_atomically
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.store import FORMAT_VERSION, FileFormat, KeyedStore, journal_of, key_of

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


_KEYED = ("engine", "engine_version", "device", "measurement", "fingerprint", "sources")
_MOST_BYTES = 4 << 30


class _CollectedIdentity(BaseModel):
    """Holds the readable form of a key, as it came."""

    model_config = ConfigDict(extra="allow", frozen=True)

    format_version: Literal[1]
    engine: str
    engine_version: str
    device: dict[str, Any]
    measurement: dict[str, Any]
    fingerprint: str
    sources: str
    nominal_compute_us: float
    nominal_bandwidth_us: float


@dataclass(frozen=True, slots=True)
class Collected:
    """What was taken of one stage and key: rows that were not here, and rows that were."""

    stage: str
    key: str
    fresh: int
    known: int


def collect(device: str, source: Path, rows: Path) -> list[Collected]:
    """Take the rows of a device from a folder or an archive; all of them, or, where one does not fit, none.

    `source`: `data/rows/<device>` of the other machine, or a tar archive of it; `rows`: folder of all rows here.
    """
    with ScratchFolder("collect") as scratch:
        folder = source if source.is_dir() else _unpacked(source, Path(scratch))
        found = list(_stages(device, folder, source))
    if not found:
        raise FormatError(
            f"there are no rows of {device!r}",
            where=str(source),
            next_step=f"name the folder data/rows/{device} of the other machine, or an archive of it: "
            f"tar -C data/rows -cf rows.tar {device}",
        )
    told = []
    for stage, key, identity, measured in found:
        store = row_store(rows / device / stage, key, identity)
        fresh = {k: row for k, row in measured.items() if not store.has(k)}
        if fresh:
            store.commit(fresh)
            store.merge()
        told.append(Collected(stage, key, len(fresh), len(measured) - len(fresh)))
    return told


def _unpacked(source: Path, folder: Path) -> Path:
    try:
        with tarfile.open(source) as archive:
            if sum(member.size for member in archive) > _MOST_BYTES:
                raise FormatError("the archive is too large", where=str(source), next_step="name a folder instead")
            archive.extractall(folder, filter="data")
    except (OSError, tarfile.TarError) as error:
        next_step = "name the folder data/rows/DEVICE of the other machine, or a tar archive of it"
        raise FormatError(f"not a readable archive: {error}", where=str(source), next_step=next_step) from error
    return folder


_Rows = Mapping[tuple[str, int], Mapping[str, Any]]


def _stages(device: str, folder: Path, source: Path) -> Iterator[tuple[str, str, dict[str, Any], _Rows]]:
    """Read what is below a folder: stage, key, identity and rows."""
    for path in sorted(folder.rglob("*.json")):
        parts = sorted(path.parent.glob(f"{path.stem}-*.parquet"))
        if not parts:
            continue
        identity = read_json(path, _CollectedIdentity, "identity of rows")
        where = f"{source}, {path.relative_to(folder)}"
        whose = str(identity.device.get("name"))
        if whose != device:
            raise FormatError(
                f"these are rows of the device {whose!r}, not of {device!r}",
                where=where,
                next_step=f"edgeplan device collect {whose} ...; nothing was stored",
            )
        if key_of({name: getattr(identity, name) for name in _KEYED}) != path.stem:
            raise FormatError(
                "the key of these rows is not that of what they say of themselves",
                where=where,
                next_step="copy the folder again, as it is; nothing was stored",
            )
        measured = {(row["subject"], row["sample"]): row for part in parts for row in read_rows(part)}
        for row in measured.values():
            _require_sound(row, where)
        yield path.parent.name, path.stem, json.loads(path.read_bytes()) | {"format_version": 1}, measured


def _require_sound(row: Mapping[str, Any], where: str) -> None:
    blocks = len(row["least_us"])
    sound = (
        blocks > 0
        and all(len(row[name]) == blocks for name in COLUMNS)
        and all(math.isfinite(value) and value > 0 for name in _TIMES for value in row[name])
        and all(math.isfinite(value) and value >= 0 for value in (*row["node_us"], *row["measured_at"], row["seconds"]))
        and len(row["node_us"]) == blocks * len(row["nodes"])
    )
    if not sound:
        what = f"the row of subject {row['subject'][:80]!r} is damaged"
        raise FormatError(what, where=where, next_step="copy the folder again; nothing was stored")
