"""The row store: every measurement once, for ever.

A row is keyed by everything that decides it (engine and version, device settings, measuring settings, machine fingerprint,
digest of the measuring sources) and by its subject. Parts are only added, never changed; a part is written under a temporary
name and renamed. Each part is also journalled outside the workspace, so that a killed run in a temporary workspace loses
nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.files import state_folder, write_atomically, write_text

FORMAT_VERSION = 1
_FLOATS = pa.list_(pa.float32())
_SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("sample", pa.int32()),
        ("least_us", _FLOATS),
        ("median_us", _FLOATS),
        ("compute_us", _FLOATS),
        ("bandwidth_us", _FLOATS),
        ("measured_at", pa.list_(pa.float64())),
        ("nodes", pa.list_(pa.string())),
        ("node_us", _FLOATS),
        ("seconds", pa.float32()),
    ],
    metadata={"edgeplan_rows": str(FORMAT_VERSION)},
)
#: A merged file stays below this, so that it can live in git.
_MAX_ROWS_PER_FILE = 2000
_JOURNAL_SECONDS = 14 * 86400.0
#: Writing a file takes far less: a temporary file older than this was left behind by a run that was killed.
_STALE_SECONDS = 10.0


def journal_folder(rows: Path) -> Path:
    """Where the rows of a folder are journalled."""
    return state_folder() / "journal" / rows.name


class RowStore:
    """Measurements of one key, in a folder shared by the rows of other keys.

    Args:
        folder: `data/rows/<device>`.
        key: digest of everything that decides a row, but the subject.
        identity: the readable form of the key, kept beside the rows.
    """

    def __init__(self, folder: Path, key: str, identity: Mapping[str, Any]) -> None:
        self.folder, self.key, self.identity = folder, key, identity
        self._journal = journal_folder(folder)
        self._table: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._remove_stale()
        for path in self._parts(folder):
            self._read(path)
        for path in self._parts(self._journal):  # rows a killed run left behind
            self._read(path)

    def _remove_stale(self) -> None:
        """Remove what killed runs left half-written; a file that is being written just now is young."""
        for folder in (self.folder, self._journal):
            for path in folder.glob(".*.tmp"):
                with contextlib.suppress(FileNotFoundError):
                    if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                        path.unlink()

    def _parts(self, folder: Path) -> list[Path]:
        return sorted(folder.glob(f"{self.key}-*.parquet"))

    def _read(self, path: Path) -> None:
        for row in read_rows(path):
            known = self._table.setdefault((row["subject"], row["sample"]), row)
            if row["measured_at"][0] > known["measured_at"][0]:  # a subject that was come back to
                self._table[row["subject"], row["sample"]] = row

    def known(self, subject: str, sample: int) -> bool:
        """Tell whether the store holds this measurement."""
        return (subject, sample) in self._table

    def get(self, subject: str, sample: int, nominal: ReferenceTimes, exponents: ReferenceExponents) -> Measurement:
        """A stored measurement, normalised as asked."""
        row = self._table[subject, sample]
        nodes = tuple(EngineNode(**{**json.loads(n), "members": tuple(json.loads(n)["members"])}) for n in row["nodes"])
        blocks = len(row["least_us"])
        arrays = {
            k: np.array(row[k], dtype=np.float64)
            for k in ("least_us", "median_us", "compute_us", "bandwidth_us", "measured_at")
        }
        return Measurement(
            subject=subject,
            sample=sample,
            nodes=nodes,
            node_us=np.array(row["node_us"], dtype=np.float64).reshape(blocks, len(nodes)),
            nominal=nominal,
            exponents=exponents,
            seconds=float(row["seconds"]),
            **arrays,
        )

    def newest(self) -> float:
        """When the newest row was measured, seconds since the epoch; 0 for an empty store."""
        return max((max(row["measured_at"]) for row in self._table.values()), default=0.0)

    def add(self, measurements: Sequence[Measurement], again: int = 0) -> None:
        """Store one batch: first in the journal, then in the workspace.

        Args:
            measurements: of the batch. They take the place of those that the store holds of the same subjects.
            again: which return to noisy subjects this is.

        Raises:
            StoreError: neither place could take it.
        """
        rows = [_row(m) for m in measurements]
        returned = f"-again{again}" if again else ""
        name = f"{self.key}-{measurements[0].subject}-{measurements[0].sample}{returned}.parquet"
        for folder in (self._journal, self.folder):
            write_rows(folder / name, rows)
        for folder in (self._journal, self.folder):
            write_identity(folder, self.key, self.identity)
        for row in rows:
            self._table[row["subject"], row["sample"]] = row

    def merge(self) -> None:
        """Merge the parts of this key into few files, and delete journals that are old enough to be in a workspace."""
        self._remove_stale()
        for path in self._parts(self._journal):
            if time.time() - path.stat().st_mtime > _JOURNAL_SECONDS:
                path.unlink()
        if not self._parts(self._journal):
            identity_file(self._journal, self.key).unlink(missing_ok=True)
        old = self._parts(self.folder)
        merged = {f"{self.key}-rows-{i:03d}.parquet" for i in range(-(-len(self._table) // _MAX_ROWS_PER_FILE))}
        stored = sum(pq.read_metadata(path).num_rows for path in old)
        if not self._table or ({p.name for p in old} == merged and stored == len(self._table)):
            return
        rows = [self._table[k] for k in sorted(self._table)]
        for index, name in enumerate(sorted(merged)):
            write_rows(self.folder / name, rows[index * _MAX_ROWS_PER_FILE : (index + 1) * _MAX_ROWS_PER_FILE])
        for path in [p for p in old if p.name not in merged]:
            path.unlink()
        write_identity(self.folder, self.key, self.identity)


def _row(m: Measurement) -> dict[str, Any]:
    nodes = [json.dumps({f: getattr(n, f) for f in EngineNode.__slots__}, separators=(",", ":")) for n in m.nodes]
    # rounded as the file rounds: a resumed run computes from the same numbers as an uninterrupted one
    return {
        "subject": m.subject,
        "sample": m.sample,
        "least_us": m.least_us.astype(np.float32),
        "median_us": m.median_us.astype(np.float32),
        "compute_us": m.compute_us.astype(np.float32),
        "bandwidth_us": m.bandwidth_us.astype(np.float32),
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
    """Rows of one Parquet file.

    Raises:
        FormatError: not Parquet, or of another format version.
    """
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


def identity_file(folder: Path, key: str) -> Path:
    """Where the readable form of a key stands beside its rows."""
    return folder / f"{key}.json"


def write_identity(folder: Path, key: str, identity: Mapping[str, Any]) -> None:
    """Keep the readable form of a key beside its rows."""
    path = identity_file(folder, key)
    text = json.dumps({"format_version": FORMAT_VERSION, **identity}, indent=2, sort_keys=True) + "\n"
    if not path.is_file() or path.read_text() != text:
        write_text(path, text)
