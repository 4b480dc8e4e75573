"""Times two reference loads beside every block, so that drift of the machine can be divided out.

A matrix product follows the clock, a streaming product follows the memory bandwidth. Both use one thread. A processor that
is not the host brings loads of its own (`Engine.reference_loads`). Their nominal times, the scale of measured times, are what
they take in an ordinary moment, not in the best one: a machine that nobody else uses is 4 to 8 % slower in most minutes than in
its best, and users measure in most minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from edgeplan.support.files import state_folder
from edgeplan.support.machine import fingerprint

_GEMM_SIZE = 256
_STREAM_ELEMENTS = 2_000_000  # 8 MB in, 8 MB out: beyond the second-level cache


@dataclass(frozen=True, slots=True)
class ReferenceTimes:
    """Reference times are the least of each of the two references, in microseconds."""

    compute_us: float
    bandwidth_us: float


class References:
    """References are two loads: of the clock and of the memory of what is measured; without, those of the host."""

    def __init__(self, loads: tuple[Callable[[], object], Callable[[], object]] | None = None) -> None:
        self._compute, self._bandwidth = loads or _host_loads()
        self._pools = ThreadpoolController()  # looking for them takes longer than a load
        self.time(3)

    def time(self, runs: int) -> ReferenceTimes:
        """Return the least of `runs` timings of each load, the two in turn."""
        compute, bandwidth = [], []
        clock = time.perf_counter_ns
        with self._pools.limit(limits=1, user_api="blas"):
            for _ in range(runs):
                start = clock()
                self._compute()
                middle = clock()
                self._bandwidth()
                end = clock()
                compute.append(middle - start)
                bandwidth.append(end - middle)
        return ReferenceTimes(min(compute) / 1e3, min(bandwidth) / 1e3)


def _host_loads() -> tuple[Callable[[], object], Callable[[], object]]:
    rng = np.random.default_rng(0)
    left: npt.NDArray[np.float32] = rng.random((_GEMM_SIZE, _GEMM_SIZE), dtype=np.float32)
    right, product = left.copy(), np.empty_like(left)
    source: npt.NDArray[np.float32] = rng.random(_STREAM_ELEMENTS, dtype=np.float32)
    target = np.empty_like(source)
    return partial(np.matmul, left, right, out=product), partial(np.multiply, source, np.float32(1.5), out=target)


_SECONDS = 6.0
#: Of the times of the references, from the least: the median of the quieter half, so that other work in fewer than half of the
#: moments changes nothing.
_QUANTILE = 0.25


def nominal_times(device: str, rows: Path, references: References, runs: int) -> ReferenceTimes:
    """Return the reference times of rows, below the folder of all, of this device and machine; without such rows measure now.

    The references are timed on the cores that count, `runs` of each at a time.
    """
    here = fingerprint()
    for identity in _identities(device, rows):
        if identity.get("fingerprint") == here and identity.get("device", {}).get("name") == device:
            return ReferenceTimes(float(identity["nominal_compute_us"]), float(identity["nominal_bandwidth_us"]))
    return quiet_times(references, runs)


def quiet_times(references: References, runs: int, seconds: float | None = None) -> ReferenceTimes:
    """Time the references for some seconds, `runs` of each at a time; return the median times of the quieter half."""
    times, end = [references.time(runs)], time.monotonic() + (_SECONDS if seconds is None else seconds)
    while time.monotonic() < end:
        times.append(references.time(runs))
    return ReferenceTimes(*(float(np.quantile(column, _QUANTILE)) for column in zip(*map(astuple, times), strict=True)))


def _identities(device: str, rows: Path) -> Iterator[dict[str, Any]]:
    """Yield the identities kept beside rows, those of the workspace first; files of another kind are passed over."""
    for path in (*sorted((rows / device).glob("*/*.json")), *sorted((state_folder() / "identities").glob("*.json"))):
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and {"nominal_compute_us", "nominal_bandwidth_us"} <= found.keys():
            yield found
