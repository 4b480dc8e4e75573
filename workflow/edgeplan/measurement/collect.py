"""Collecting brings rows that another machine measured into this workspace, each once: `edgeplan device collect`."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from edgeplan.errors import FormatError
from edgeplan.measurement.rows import read_rows, row_store
from edgeplan.support.files import read_json
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.store import key_of

_KEYED = ("engine", "engine_version", "device", "measurement", "fingerprint", "sources")
_TIMES = ("least_us", "median_us", "compute_us", "bandwidth_us")
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
    """This counts what was taken of one stage and key.

    Attributes:
        stage: folder of the rows.
        key: key of the rows.
        fresh: rows that were not here.
        known: rows that were.
    """

    stage: str
    key: str
    fresh: int
    known: int


def collect(device: str, source: Path, rows: Path) -> list[Collected]:
    """Take the rows of a device from a folder or an archive; all of them, or, where one does not fit, none.

    Args:
        device: its name.
        source: `data/rows/<device>` of the other machine, or a tar archive of it.
        rows: folder of all rows here.
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
        and all(len(row[name]) == blocks for name in (*_TIMES, "measured_at"))
        and all(math.isfinite(value) and value > 0 for name in _TIMES for value in row[name])
        and all(math.isfinite(value) and value >= 0 for value in (*row["node_us"], *row["measured_at"], row["seconds"]))
        and len(row["node_us"]) == blocks * len(row["nodes"])
    )
    if not sound:
        what = f"the row of subject {row['subject'][:80]!r} is damaged"
        raise FormatError(what, where=where, next_step="copy the folder again; nothing was stored")
