"""Runs stock engines beside a plan: what memory they take, and how long."""

from __future__ import annotations

import signal
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.engines.program import OverTimeError, Program
from edgeplan.graph.index_limits import index_limits
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process.counters import Counters, reset_peak
from edgeplan.measurement.process.inputs import JobInputs, drawn
from edgeplan.measurement.process.job import PrepareJob
from edgeplan.measurement.process.memory_group import memory_group
from edgeplan.measurement.process.starts import prepare_offline
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.workers import ColdRunError

#: What shares are of: ONNX Runtime as it comes.
DEFAULT = "onnxruntime"
_TIMEOUT_SECONDS = 600.0


def peak_bytes(model: Path, processors: tuple[int, ...]) -> int:
    """Measure ONNX Runtime's peak over idle by default, all pages, in bytes."""
    with ScratchFolder("stock") as folder:
        return run_model(DEFAULT, model, Path(folder), processors, runs=3).peak_over_idle


class OutOfMemoryError(ColdRunError):
    """Reports that the system ended a process that was held to a limit of memory."""


@dataclass(frozen=True, slots=True)
class StockResult:
    """The memory and times of a stock engine's process.

    Attributes:
        idle, peak: before the model was opened, its library loaded and its inputs there, and after the inferences.
        major_faults: since `idle`.
        cpu_ms: processor time of an inference, all but the first.
        failures: allocations that hit a limit.
    """

    idle: Counters
    peak: Counters
    run_ms: tuple[float, ...]
    major_faults: int
    cpu_ms: float
    failures: int

    @property
    def peak_over_idle(self) -> int:
        """Return the peak over idle in bytes, all pages counted."""
        return max(0, self.peak.peak - self.idle.rss)


def inputs_of(model: Path) -> JobInputs:
    """Return the random inputs of a model, as jobs have them."""
    graph = load_onnx(model)
    return {
        "inputs": {name: graph.shape(name) for name in graph.inputs},
        "types": {name: graph.tensors[name].dtype for name in graph.inputs},
        "below": dict(index_limits(graph)),
    }


def prepared(setting: str, model: Path, inputs: JobInputs, folder: Path, threads: int) -> Artefact:
    """Prepare the artefact that a setting loads for a model."""
    found = prepare_offline(PrepareJob(setting=setting, threads=threads, model=model, folder=folder, **inputs))
    if found.artefact is None:
        raise ColdRunError(f"{setting} cannot run the model: {found.reason}", where=str(model), next_step="leave it out")
    return found.artefact


def run_model(setting: str, model: Path, folder: Path, processors: tuple[int, ...], runs: int) -> StockResult:
    """Prepare a model for a setting in a folder, and run it there; see `run_stock`."""
    inputs = inputs_of(model)
    return run_stock(setting, prepared(setting, model, inputs, folder, len(processors)), inputs, processors, runs)


def run_stock(
    setting: str,
    artefact: Artefact,
    inputs: JobInputs,
    processors: tuple[int, ...],
    runs: int,
    *,
    patience_seconds: float = 0.0,
    budget: int | None = None,
) -> StockResult:
    """Run a model by a setting in a process of its own, by as many threads as there are processors.

    Opening with the first inference, and each further one, may take the seconds of patience, and after as many in all no
    further one begins; 0: any time. The system holds it to a budget of bytes over idle; None: no limit.
    """
    values = drawn(inputs)
    with (nullcontext() if budget is None else memory_group()) as group, Program(
        setting, artefact, values,
        threads=len(processors), processors=processors, timeout_seconds=_TIMEOUT_SECONDS, group=group,
    ) as program:  # fmt: skip
        reset_peak(program.number)
        idle = Counters.of(program.number)
        if group is not None and budget is not None:
            group.limit(budget)
        try:
            times = [program.go(patience_seconds)["first_run"] * 1e3]
            begun = Counters.of(program.number)
            # the first one and another are run in any case
            while len(times) < runs and not (len(times) > 1 and 0 < patience_seconds * 1e3 <= sum(times)):
                asked = 1 if patience_seconds else runs - len(times)
                times += program.run(asked, patience_seconds)
            peak = Counters.of(program.number)
        except ColdRunError as error:
            if group is not None and program.exit_code == -signal.SIGKILL and not isinstance(error, OverTimeError):
                raise OutOfMemoryError(error.what, where=error.where, next_step=error.next_step) from error
            raise
        failures = 0 if group is None else group.failures
    cpu_ms = (peak.ran_ms - begun.ran_ms) / max(len(times) - 1, 1)
    return StockResult(idle, peak, tuple(times), peak.major_faults - idle.major_faults, cpu_ms, failures)
