"""A stock engine's memory is measured in a process of its own: `python -m edgeplan.measurement.process.stock_memory`.

JSON on stdin, JSON on stdout. Idle is the process with the engine's library loaded and its inputs there, no model opened.
The system ends a process by SIGALRM whose inference takes longer than it may: one that waits for pages cannot look at a clock.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.engines.cold import Artefact
from edgeplan.engines.registry import setting
from edgeplan.measurement.process.inputs import digest, random_inputs
from edgeplan.measurement.process.job import Dimension, Name, Resident
from edgeplan.support.answers import take_stdout
from edgeplan.support.memory_counters import reset_peak, resident, wait_at


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StockJob(_Document):
    """Asks for a model to be run by a stock engine.

    Attributes:
        setting: name of the engine's setting.
        artefact: artefact that the setting loads.
        inputs: shape of each input.
        types: of those that are not of float32.
        seed: of the inputs.
        threads: of the engine.
        processors: that it may use; empty: any.
        runs: inferences.
        patience_seconds: that opening, and each inference, may take; after as many in all no further one begins; 0: any time.
        gate: a file to wait for before the model is opened; "": none.
        save_outputs: where to write the outputs as .npz, or nothing.
    """

    kind: Literal["stock"] = "stock"
    setting: Name
    artefact: Artefact
    inputs: Annotated[dict[Name, tuple[Dimension, ...]], Field(min_length=1)]
    types: dict[Name, str] = Field(default_factory=dict)
    below: dict[Name, Dimension] = Field(default_factory=dict)
    seed: Annotated[int, Field(ge=0)] = 0
    threads: Annotated[int, Field(ge=1, le=1024)]
    processors: tuple[Annotated[int, Field(ge=0)], ...] = ()
    runs: Annotated[int, Field(ge=1, le=1000)] = 5
    patience_seconds: Annotated[float, Field(ge=0)] = 0.0
    gate: str = ""
    save_outputs: Path | None = None


class StockResult(_Document):
    """Reports the memory and times of a stock engine's process.

    Attributes:
        idle, peak: memory before the model was opened, and after the inferences.
        open_ms, run_ms: times to open the model, and of each inference.
        major_faults: major page faults since `idle`.
        cpu_ms: processor time of the process during the inferences.
        digest: digest of the outputs.
        version: version of the engine.
    """

    idle: Resident
    peak: Resident
    open_ms: float
    run_ms: tuple[float, ...]
    major_faults: int
    cpu_ms: float
    digest: str
    version: str

    @property
    def peak_over_idle(self) -> int:
        """Return the peak over idle in bytes, all pages counted."""
        return max(0, self.peak.peak - self.idle.rss)


def main() -> None:
    """Read a job, do it, write its result."""
    stdout = take_stdout()
    job = StockJob.model_validate_json(sys.stdin.buffer.read())
    text = run(job).model_dump_json()
    with os.fdopen(stdout, "w") as file:
        file.write(text)
        file.flush()
    os._exit(0)  # some engines crash or hang in their own atexit handlers


def run(job: StockJob) -> StockResult:
    """Run a model by a stock engine.

    Raises:
        UnsupportedError: the engine cannot run it.
    """
    if job.processors:
        os.sched_setaffinity(0, job.processors)
    baseline = setting(job.setting).create()
    baseline.load_library(job.threads)
    inputs = baseline.prepare_inputs(random_inputs(job.inputs, job.seed, job.types, job.below))
    gc.collect()
    wait_at(job.gate)
    reset_peak()
    idle, faults = Resident(**resident()), resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    signal.setitimer(signal.ITIMER_REAL, job.patience_seconds)  # nobody handles the signal: it ends the process
    start = time.perf_counter()
    session = baseline.open(job.artefact, inputs, job.threads)
    opened, cpu = time.perf_counter(), time.process_time()
    times: list[float] = []
    while len(times) < job.runs and not _spent(job, times):
        signal.setitimer(signal.ITIMER_REAL, job.patience_seconds)
        begin = time.perf_counter()
        session.run()
        times.append((time.perf_counter() - begin) * 1e3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    cpu = time.process_time() - cpu
    peak, major = Resident(**resident()), resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    outputs = {name: np.array(value) for name, value in session.outputs().items()}
    if job.save_outputs is not None:
        np.savez(job.save_outputs, allow_pickle=False, **outputs)
    opened_ms = (opened - start) * 1e3
    return StockResult(
        idle=idle, peak=peak, open_ms=opened_ms, run_ms=tuple(times), major_faults=major, cpu_ms=cpu * 1e3,
        digest=digest(outputs), version=baseline.version(),
    )  # fmt: skip


def _spent(job: StockJob, times: Sequence[float]) -> bool:
    """Tell whether the inferences took as long as all of them may; the first one and another are run in any case."""
    return len(times) > 1 and 0 < job.patience_seconds * 1e3 <= sum(times)


if __name__ == "__main__":
    main()
