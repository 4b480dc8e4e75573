"""Measures what a kernel pays at its first execution in a process for tables that the library generates then.

oneDNN's `gemm:jit` generates its matrix kernels then, which takes longer than many a model's whole cold start. A profiling
process has paid that long before most samples, so each is measured in a fresh process, as processor time: nothing but the
thread itself counts. The processes are forked from one that has imported everything and executed nothing
(`measurement.process.child.Forks`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import numpy as np

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.measurement.process.child import Forks
from edgeplan.measurement.process.clock import Clock
from edgeplan.measurement.process.job import OnceJob
from edgeplan.planning.profile import kernel_name
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.store import Row

#: Signatures of these rows begin with this.
ONCE = "once-"
_STAGE = "once"
_LEAST_MS = 0.5  # below, it is what cold caches do, and in every first execution


def work_of(step: Step, shapes: Mapping[str, Shape]) -> str:
    """Name the work that a kernel of a step does: the step's kind, where a product of a single row is apart.

    The library runs that one by other code, which generates nothing at its first execution.
    """
    one_row = step.kind == "fc" and math.prod(shapes[step.outputs[0]][:-1]) == 1
    return f"{step.kind}-row" if one_row else step.kind


def kernel_of(work: str, implementation: str) -> str:
    """Name the kernel of a candidate, whatever layouts it converts from and to; a name means different code for other work."""
    return f"{work} {kernel_name(implementation)}"


def once_ms(rows: Iterable[Row]) -> Mapping[str, float]:
    """Return by kernel the milliseconds of its first execution in a process, from those rows that are about it."""
    return {row.implementation: row.samples_ms[_STAGE][0] for row in rows if row.signature.startswith(ONCE)}


def measure_once(
    trials: Trials,
    known: Collection[str],
    scratch: Path,
    clock: Clock,
    forks: Forks,
    wanted: Collection[tuple[str, str]] | None = None,
) -> list[Row]:
    """Measure the kernels of a model that are not known yet, each by the candidate with the least weights.

    Args:
        trials: the candidates.
        known: kernels that were measured.
        scratch: folder to write to.
        clock: clock of the machine.
        forks: processes that execute them.
        wanted: signatures and implementations of the candidates whose kernels matter; None for all.
    """
    program = trials.subject.program
    smallest: dict[str, tuple[int, int, int]] = {}
    for index, group in trials.group.items():
        for position, implementation in enumerate(group.implementations):
            kernel = kernel_of(work_of(program.steps[index], program.shapes), implementation.name)
            if kernel not in known and (wanted is None or (group.digest, implementation.name) in wanted):
                candidate = (group.sizes[position].weights, index, position)
                smallest[kernel] = min(smallest.get(kernel, candidate), candidate)
    if not smallest:
        return []
    chosen = {kernel: (index, position, 1) for kernel, (_, index, position) in sorted(smallest.items())}
    made, records = trials.only(tuple(chosen.values()))
    file = scratch / f"once-{trials.subject.program.home}.bin"
    file.write_bytes(made.content)
    times_ms = []
    for record in records:
        before = clock.now()
        time_ms = forks.first_execution_ms(OnceJob(program=file, cache=made.cache, record=record))
        times_ms.append(time_ms / clock.slowness(before, clock.now()))
    now = time.time()
    return [
        Row(ONCE + kernel, kernel, 0, 0, 0, 0, {_STAGE: (_stored(time_ms),)}, now)
        for kernel, time_ms in zip(chosen, times_ms, strict=True)
    ]


def _stored(time_ms: float) -> float:
    return float(np.float32(time_ms)) if time_ms >= _LEAST_MS else 0.0  # as rows are stored
