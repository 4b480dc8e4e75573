"""Times two reference loads beside every block, so that drift of the machine can be divided out.

A matrix product follows the clock, a streaming product follows the memory bandwidth. Both use one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

_GEMM_SIZE = 256
_STREAM_ELEMENTS = 2_000_000  # 8 MB in, 8 MB out: beyond the second-level cache


@dataclass(frozen=True, slots=True)
class ReferenceTimes:
    """Reference times are the least of each of the two references, in microseconds."""

    compute_us: float
    bandwidth_us: float


class References:
    """References are two loads, allocated once."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._a: npt.NDArray[np.float32] = rng.random((_GEMM_SIZE, _GEMM_SIZE), dtype=np.float32)
        self._b = self._a.copy()
        self._product = np.empty_like(self._a)
        self._source: npt.NDArray[np.float32] = rng.random(_STREAM_ELEMENTS, dtype=np.float32)
        self._target = np.empty_like(self._source)
        self.time(3)

    def time(self, runs: int) -> ReferenceTimes:
        """Return the least of `runs` timings of each load, the two in turn."""
        compute, bandwidth = [], []
        clock = time.perf_counter_ns
        with threadpool_limits(1, "blas"):
            for _ in range(runs):
                start = clock()
                np.matmul(self._a, self._b, out=self._product)
                middle = clock()
                np.multiply(self._source, np.float32(1.5), out=self._target)
                end = clock()
                compute.append(middle - start)
                bandwidth.append(end - middle)
        return ReferenceTimes(min(compute) / 1e3, min(bandwidth) / 1e3)
