"""Running a plan folder: in this process, or cold in fresh ones."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.devices.config import load_device
from edgeplan.errors import DeviceError
from edgeplan.measurement.process import child as process
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.profiling.settings import Cores, cores_of
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.process import prepare_process
from edgeplan.support.machine import fingerprint
from edgeplan.support.workers import ColdRunError

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Inferences:
    """Inferences of one session.

    Attributes:
        first: outputs of the cold start, by name.
        last: outputs of the last inference.
        times_ms: of each, the cold start first, opening the plan included.
        stages_ms: of the cold start, sums over all cores.
    """

    first: Mapping[str, Array]
    last: Mapping[str, Array]
    times_ms: tuple[float, ...]
    stages_ms: Mapping[str, float]


def processors(program: LinkedProgram, device: str = "") -> Cores:
    """The processors that a program takes: those that execute, and on asymmetric chips as many little ones as it has queues.

    Args:
        program: of a plan folder.
        device: name or path of a device file; "" takes the lowest-numbered processors that this process may use, little ones
            after those that execute, as a measured run does.

    Raises:
        DeviceError: there are too few of either, or the device is unknown or executes on another number of cores.
    """
    executing, preparing = program.threads, 0 if program.equal_cores else len(program.queues)
    if device:
        found, where = cores_of(load_device(device)), f"device {device!r}"
    else:
        usable = tuple(sorted(os.sched_getaffinity(0)))
        found, where = Cores(usable[:executing], usable[executing:]), "processors that this process may use"
    if len(found.big) != executing or len(found.little) < preparing:
        raise DeviceError(
            f"the plan needs {executing} processors to execute and {preparing} beside them to prepare, "
            f"there are {len(found.big)} and {len(found.little)}",
            where=where,
            next_step="name the device that it was planned for with --device, allow more processors, or plan the model again",
        )
    # sorted, as a fresh process takes them: cores of one class stand for each other
    return Cores(tuple(sorted(found.big)), tuple(sorted(found.little[:preparing])))


def require_sorted(cores: Cores, device: str) -> None:
    """A fresh process is told which processors it has, and takes the lowest-numbered ones to execute.

    Raises:
        DeviceError: it would take others than the device names.
    """
    if cores.little and cores.little[0] < cores.big[-1]:
        raise DeviceError(
            f"little core {cores.little[0]} is numbered below big core {cores.big[-1]}: a fresh process would execute on it",
            where=f"device {device!r}, fields big_cores and little_cores",
            next_step="run without --cold, which takes the cores as they are named",
        )


@contextmanager
def kept_on(cores: Cores) -> Iterator[None]:
    """Keep this thread, and those it starts, on some cores and no others, as a fresh process is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.all)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_here(
    folder: Path, program: LinkedProgram, inputs: Mapping[str, Array], repeat: int, cores: Cores, *, continuous: bool
) -> Inferences:
    """A cold start and `repeat - 1` warm runs in this process.

    Raises:
        EdgeplanError: see `ColdSession`.
    """
    dnnl, machine = Dnnl(), fingerprint()
    prepare_process(dnnl)
    start = time.perf_counter()
    with ColdSession(
        dnnl,
        folder,
        threads=program.threads,
        machine=machine,
        cores=cores.big,
        little=cores.little,
        continuous=continuous,
    ) as session:
        first = last = session.run(inputs)
        times = [(time.perf_counter() - start) * 1e3]
        for _ in range(repeat - 1):  # nothing in between: time to spare would be spent on the kernels of later runs
            start = time.perf_counter()
            last = session.run(inputs)
            times.append((time.perf_counter() - start) * 1e3)
        return Inferences(first, last, tuple(times), session.stages_ms())


def start_apart(
    folder: Path, program: LinkedProgram, inputs: Mapping[str, Array], cores: Cores, *, evicted: bool, continuous: bool
) -> float:
    """A cold start in a fresh process, on random inputs, in ms.

    Args:
        folder: the plan folder.
        program: its program.
        inputs: for a run in this process, which says what is wrong where the fresh one fails, and mends the cache.
        cores: where to run.
        evicted: whether the plan's files are dropped from the page cache before.
        continuous: whether idle cores prepare the kernels of later runs.

    Raises:
        ColdRunError: the process failed where this one does not.
        EdgeplanError: see `ColdSession`.
    """
    fields = {
        "setting": "edgeplan-continuous" if continuous else "edgeplan",
        "threads": program.threads,
        "cpus": cores.all,
        "state": "evicted" if evicted else "cached",
        **job_inputs(program.inputs),
    }
    for _ in range(2):
        result = process.run_cold(RunJob.model_validate(fields | {"artefact": prepared(folder).artefact}))
        if result.cold_ms is not None:
            return result.cold_ms
        run_here(folder, program, inputs, 1, cores, continuous=continuous)
    raise ColdRunError(
        f"cannot start cold: {result.reason}", where=str(folder), next_step="plan the model again: edgeplan plan cold-start"
    )
