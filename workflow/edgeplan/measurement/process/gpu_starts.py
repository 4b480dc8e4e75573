"""Starts a plan of a GPU in a process of its own, `python -m edgeplan.measurement.process.gpu_starts`.

It reads a job on stdin, and writes a result on stdout.

Drivers look up no code of earlier processes, so that nothing is found but what the plan folder holds.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from edgeplan.gpu_start.session import GpuSession, host_processors, open_gpu, without_driver_caches
from edgeplan.measurement.process import page_cache
from edgeplan.runtime.folder import GPU_START, PlanFolder, read_folder
from edgeplan.runtime.gpu_program import GpuProgram
from edgeplan.support.machine import fingerprint
from edgeplan.support.own_process import take_stdout
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.workers import work_apart

_TIMEOUT_SECONDS = 600.0
_MS_PER_S = 1e3
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108  what PoCL unpacks at each start need not reach a disk


class GpuStartJob(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job asks for one cold start, and inferences after it.

    Inputs, and the first outputs where a file is named, are .npz. The plan's files and the model's are `evicted` from the page
    cache before, or else read through; `scratch` is an empty folder for what the driver unpacks, "" for its own.
    """

    folder: str
    inputs: str
    outputs: str = ""
    warm_runs: int = 0
    evicted: bool = False
    scratch: str = ""


class GpuStartResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A result tells the times of a start, in ms.

    Attributes:
        library_ms: to load the binding, the driver and the compiler, and to look for the device.
        context_ms: to make a context and a queue.
        cold_ms: from an open processor to the first outputs: the plan folder is read, all is prepared and executed.
        warm_ms: of each inference after it.
        stages_ms: parts of the cold start (`session.STAGES`), sums over all threads.
        code_problem: why kernels were compiled although the plan keeps their code; "" if none was.
        cached_before: share of the plan's files and the model's in the page cache when the clock started, 0 to 1.
    """

    library_ms: float
    context_ms: float
    cold_ms: float
    warm_ms: tuple[float, ...]
    stages_ms: dict[str, float]
    code_problem: str
    cached_before: float = 0.0


def start_gpu(job: GpuStartJob) -> GpuStartResult:
    """Start a plan cold in a fresh process."""
    memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK) else Path(tempfile.gettempdir())
    with ScratchFolder("edgeplan-gpu-start-", memory) as folder:
        return work_apart(__name__, msgspec.structs.replace(job, scratch=folder), GpuStartResult, "a cold start on a GPU",
                          _TIMEOUT_SECONDS)  # fmt: skip


def starts_apart(plan: PlanFolder, values: Mapping[str, Any], repeat: int, *, evicted: bool) -> tuple[float, ...]:
    """Start a plan cold in fresh processes, one after the other, its files evicted or not; return the time of each, ms."""
    with ScratchFolder("gpu-inputs") as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **dict(values))
        return tuple(start_gpu(GpuStartJob(str(plan.path), str(inputs), evicted=evicted)).cold_ms for _ in range(repeat))


def started(job: GpuStartJob) -> GpuStartResult:
    """Start a plan cold in this process; see `start_gpu`."""
    folder = Path(job.folder)
    with np.load(job.inputs, allow_pickle=False) as given:
        inputs = {name: given[name] for name in given.files}
    opened = open_gpu(cast("GpuProgram", read_folder(folder, GPU_START).program).device)
    os.sched_setaffinity(0, host_processors(opened.processor))  # off those that the device computes on
    gc.collect()
    gc.freeze()
    files = files_of(read_folder(folder, GPU_START))
    if job.evicted:
        page_cache.evict(files)
    else:
        page_cache.read_through(files)
    cached_before = page_cache.cached_share(files)
    began = time.perf_counter()
    with GpuSession(read_folder(folder, GPU_START), opened.processor, fingerprint()) as session:
        outputs = session.run(inputs)
        cold_ms = (time.perf_counter() - began) * _MS_PER_S
        if job.outputs:
            np.savez(job.outputs, allow_pickle=False, **outputs)
        warm = []
        for _ in range(job.warm_runs):
            began = time.perf_counter()
            session.run(inputs)
            warm.append((time.perf_counter() - began) * _MS_PER_S)
        return GpuStartResult(
            opened.library_ms, opened.context_ms, cold_ms, tuple(warm), dict(session.stages_ms()), session.code_problem,
            cached_before,
        )  # fmt: skip


def files_of(plan: PlanFolder) -> tuple[Path, ...]:
    """List the files that a start of a plan reads: those of the folder, and those of the model that it takes weights from."""
    program = cast("GpuProgram", plan.program)
    own = sorted(path for path in plan.path.iterdir() if path.is_file())
    return (*own, *(Path(program.files[number].path) for number in program.files_read))


def main() -> None:
    """Do the job on stdin, answer on stdout."""
    stdout = os.fdopen(take_stdout(), "w")
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=GpuStartJob)
    without_driver_caches(job.scratch)
    result = started(job)
    stdout.write(msgspec.json.encode(result).decode())
    stdout.flush()


if __name__ == "__main__":
    main()
