"""Measures the disk that weights come from when the page cache is evicted: bandwidth and latency."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import scipy
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgeplan.errors import DeviceError, FormatError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process import page_cache
from edgeplan.planning.profile import Disk
from edgeplan.runtime.readahead import Bringer
from edgeplan.support.files import write_json
from edgeplan.support.machine import fingerprint

_PROBES = 7
_PARTS = (32, 16, 8, 4, 2, 1)  # of the file: a 32nd of it, and so on
_HOW = "brought"  # `runtime.readahead`


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    machine: str
    mb_per_s: Annotated[float, Field(gt=0)]
    latency_ms: Annotated[float, Field(ge=0)]
    measured_at: float
    parts: tuple[int, ...] = ()  # of before: the first page and the whole
    how: str = ""  # of before: into a buffer


def measure_disk(files: Sequence[Path], *, lock_timeout_seconds: float = 0.0, probes: int = _PROBES) -> Disk:
    """Read parts of the largest file, evicted, from its begin on: what each takes is a latency and its bytes over a bandwidth.

    A first page alone would say little of the former: reading gets faster over the first megabytes, and small models end there.
    Each part is read `probes` times.
    """
    with machine_lock(lock_timeout_seconds):
        return glance_at_disk(files, probes)


def glance_at_disk(files: Sequence[Path], probes: int = 1) -> Disk:
    """Measure the disk as `measure_disk` does, whatever else is measured on this machine meanwhile."""
    path = max(files, key=lambda file: file.stat().st_size)
    sizes = sorted({max(1, path.stat().st_size // part) for part in _PARTS})
    taken = [[_reading_ms(path, size) for size in sizes if page_cache.evict([path]) == 0.0] for _ in range(probes)]
    if any(len(times) < len(sizes) for times in taken):
        raise DeviceError(
            "the model cannot be evicted from the page cache: what its weights cost from the disk cannot be measured",
            where=str(path),
            next_step="put the model on a local disk that no other process reads it from",
        )
    return fitted(sizes, np.median(taken, axis=0))


def fitted(sizes: Sequence[int], times_ms: npt.NDArray[np.float64]) -> Disk:
    """Return the disk whose latency and bandwidth come nearest to what parts of a file took (bytes, ms), by relative errors."""
    rows = np.column_stack([np.ones(len(sizes)), sizes]) / times_ms[:, None]
    (latency_ms, ms_per_byte), _ = scipy.optimize.nnls(rows, np.ones(len(sizes)))
    if ms_per_byte == 0:  # nothing but latency to be seen: what is slower than that is not known
        ms_per_byte = times_ms[-1] / sizes[-1]
    return Disk(float(1 / ms_per_byte / 1e3), float(latency_ms))


def kept_disk(path: Path, files: Sequence[Path], *, lock_timeout_seconds: float = 0.0) -> Disk:
    """Measure the disk once for a machine, as `measure_disk` does: plans would change with every probe.

    It is kept in the file `path`, which is to be deleted after moving to another disk.
    """
    if path.is_file():
        try:
            row = _Row.model_validate_json(path.read_bytes())
        except ValidationError as error:
            next_step = "delete the file: the disk is measured again"
            raise FormatError("the measured disk does not fit its format", where=str(path), next_step=next_step) from error
        if row.machine == fingerprint() and (row.parts, row.how) == (_PARTS, _HOW):
            return Disk(row.mb_per_s, row.latency_ms)
    disk = measure_disk(files, lock_timeout_seconds=lock_timeout_seconds)
    measured = {"mb_per_s": disk.mb_per_s, "latency_ms": disk.latency_ms, "measured_at": time.time()}
    row = _Row(machine=fingerprint(), parts=_PARTS, how=_HOW, **measured)
    write_json(path, row.model_dump())
    return disk


def _reading_ms(path: Path, size: int) -> float:
    """Return milliseconds of bringing the first bytes of a file into memory, as a cold start does."""
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file, Bringer() as bringer:
        bringer.bring(file.fileno(), 0, size)
    return (time.perf_counter() - start) * 1e3
