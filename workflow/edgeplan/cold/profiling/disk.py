"""The disk that weights come from when the page cache is evicted: bandwidth and latency, measured."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeplan.cold import page_cache
from edgeplan.devices.machine import fingerprint
from edgeplan.errors import DeviceError, FormatError
from edgeplan.files import write_json
from edgeplan.measurement.lock import machine_lock
from edgeplan.planning.cold_start.profile import Disk

_PROBES = 7
_FIRST_BYTES = 4096
_LEAST_SHARE = 0.1  # of the time to read a small file: what is not latency is not known better


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    mb_per_s: Annotated[float, Field(gt=0)]
    latency_ms: Annotated[float, Field(ge=0)]
    measured_at: float


def measure_disk(files: Sequence[Path], *, lock_timeout_seconds: float = 0.0) -> Disk:
    """Read evicted files from end to end, and the first page of one, several times each; medians.

    Args:
        files: what to read; the latency is taken off, so that a small model will do.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.

    Raises:
        BusyError: another process is measuring on this machine.
        DeviceError: the files cannot be evicted.
    """
    with machine_lock(lock_timeout_seconds):
        latencies = [_first_page_ms(files[0]) for _ in range(_PROBES) if page_cache.evict(files) == 0.0]
        reads = [page_cache.read_through(files) for _ in range(_PROBES) if page_cache.evict(files) == 0.0]
    if not latencies or not reads:
        raise DeviceError(
            "the model cannot be evicted from the page cache: what its weights cost from the disk cannot be measured",
            where=str(files[0]),
            next_step="put the model on a local disk that no other process reads it from",
        )
    latency = statistics.median(latencies)
    size, taken = reads[0][0], statistics.median(milliseconds for _, milliseconds in reads)
    return Disk(size / 1e3 / max(taken - latency * len(files), _LEAST_SHARE * taken), latency)


def kept_disk(path: Path, files: Sequence[Path], *, lock_timeout_seconds: float = 0.0) -> Disk:
    """`measure_disk`, once for a machine: plans that change with every probe would have to be measured again.

    Args:
        path: where it is kept; delete it after moving to another disk.
        files: what to read.
        lock_timeout_seconds: see `measure_disk`.

    Raises:
        BusyError, DeviceError: see `measure_disk`.
        FormatError: what is kept is damaged.
    """
    if path.is_file():
        try:
            row = _Row.model_validate_json(path.read_bytes())
        except ValidationError as error:
            next_step = "delete the file: the disk is measured again"
            raise FormatError("the measured disk does not fit its format", where=str(path), next_step=next_step) from error
        if row.machine == fingerprint():
            return Disk(row.mb_per_s, row.latency_ms)
    disk = measure_disk(files, lock_timeout_seconds=lock_timeout_seconds)
    row = _Row(machine=fingerprint(), mb_per_s=disk.mb_per_s, latency_ms=disk.latency_ms, measured_at=time.time())
    write_json(path, row.model_dump())
    return disk


def _first_page_ms(file: Path) -> float:
    start = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        opened.read(_FIRST_BYTES)
    return (time.perf_counter() - start) * 1e3
