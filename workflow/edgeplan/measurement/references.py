"""Times two reference loads beside every block, so that drift of the machine can be divided out.

A matrix product follows the clock, a streaming product follows the memory bandwidth. Both use one thread. A processor that
is not the host brings loads of its own (`Engine.reference_loads`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from threadpoolctl import ThreadpoolController

_GEMM_SIZE = 256
_STREAM_ELEMENTS = 2_000_000  # 8 MB in, 8 MB out: beyond the second-level cache


@dataclass(frozen=True, slots=True)
class ReferenceTimes:
    """Reference times are the least of each of the two references, in microseconds."""

    compute_us: float
    bandwidth_us: float


class References:
    """References are two loads, allocated once.

    Args:
        loads: the first follows the clock of what is measured, the second its memory; None: those of the host.
    """

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
