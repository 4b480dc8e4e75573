"""Times the first execution of a step in a process beside its second, for `edgeplan.profiling.profiles`."""

from __future__ import annotations

import time
from pathlib import Path

from edgeplan.measurement.process.record_bench import Bench
from edgeplan.runtime.dnnl import Dnnl


def first_execution_ms(program: Path, cache: Path | None, record: int) -> float:
    """Measure how much longer the first execution of a step takes than the second, in this process.

    Args:
        program: file of the step's program.
        cache: file of its cached weights.
        record: number of the step's record.
    """
    dnnl = Dnnl()
    dnnl.warm_up(1)
    with Bench(program.read_bytes(), dnnl.info.path, cache) as bench:
        prepared = (bench.prepare(record),)
        start = time.thread_time()
        bench.execute(prepared, 1)
        first = time.thread_time()
        bench.execute(prepared, 1)
        return 1e3 * ((first - start) - (time.thread_time() - first))
