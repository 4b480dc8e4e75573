"""Profiles streamed steps: time of each with its weights in memory, bandwidth of reading them, memory beside the arena."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.measurement.others import Others
from edgeplan.measurement.process.job import Resident
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.workload import Reader
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.workloads import all_resident
from edgeplan.support.workers import work_apart

_SPARE_BYTES = 192 << 10  # runs differ by some pages
_FEWEST_TIMES = 2  # that a spread is told of
_UNREAD_BYTES_PER_MS = 1e6  # of a program without weights: no bytes were timed, and none are read, so any rate will do
_Bytes = Annotated[int, Field(ge=0)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StreamPhase(_Document):
    """A phase holds the inferences by one schedule.

    Attributes:
        replan_ms: to take the stored schedule of another budget; 0 of a schedule that was given.
        pause_ms: until the first could begin: loading what memory has room for is part of it where memory is filled before.
        run_ms: of each inference; wait_ms: how much of it no step ran, what the first one waits for left out; step_ms: of each
            step, if asked for.
        digests: of the outputs, the different ones.
    """

    replan_ms: float
    pause_ms: float
    memory: Resident
    run_ms: tuple[float, ...]
    wait_ms: tuple[float, ...]
    step_ms: tuple[tuple[float, ...], ...]
    read_bytes: tuple[int, ...]
    digests: tuple[str, ...]
    cpu_ms: float


class StreamRun(_Document):
    """A streamed run is the answer of a process that runs plans; see `measurement.process.streaming`.

    Attributes:
        idle: with the library loaded and its threads started, no plan opened.
        bytes_per_ms: of reading all weights, as memory holds them, nothing else running; one each time.
        widened_per_ms: bytes of values that the reader widened in a ms meanwhile; 0 where weights are stored whole.
        table_bytes: of page tables, more than in `idle`; the kernel's memory, which a limit from outside counts.
        read_ms: of a small load that is read alone; 0 where no bandwidth was measured.
        later_major_faults: since all code had run once, the first two inferences.
        making, running: pages of the library that making kernels and executing them needed, where steps were timed.
    """

    idle: Resident
    peak: Resident
    phases: tuple[StreamPhase, ...]
    direct: bool
    major_faults: int
    bytes_per_ms: tuple[float, ...]
    read_ms: float = 0.0
    table_bytes: int = 0
    widened_per_ms: float = 0.0
    later_major_faults: int = 0
    files: tuple[str, ...] = ()
    making: tuple[int, ...] = ()
    running: tuple[int, ...] = ()

    @property
    def peak_over_idle(self) -> int:
        """Return the bytes that running the plan took at its worst, all pages counted."""
        return self.peak.peak - self.idle.rss

    @property
    def taken_bytes(self) -> int:
        """Return the bytes that a limit from outside counts: the pages, and the kernel's tables for them."""
        return self.peak_over_idle + self.table_bytes


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Names a run's inputs, processors, and number of inferences.

    Attributes:
        isolated: memory is filled before each; else they follow each other.
        followed: whether weights are loaded for one more inference than there are, as if another followed the last.
        slowed_ns: by which each step is prolonged.
        debug: memory that becomes free is filled with NaN; gives_back: it goes back to the system.
    """

    inputs: Mapping[str, Path]
    processors: Sequence[int] = ()
    reader_processors: Sequence[int] = ()
    runs: int = 5
    isolated: bool = True
    followed: bool = False
    slowed_ns: Sequence[int] = ()
    debug: bool = False
    gives_back: bool = False
    bandwidth_passes: int = 0
    steps: bool = False
    outputs: Mapping[str, Path] | None = None
    timeout_seconds: float = 600.0

    def job(self, folder: Path, schedules: Sequence[object]) -> dict[str, Any]:
        """Return the job of the worker."""
        return {
            **{field: getattr(self, field) for field in self.__slots__ if field != "timeout_seconds"},
            "folder": str(folder.resolve()),
            "schedules": list(schedules),
            "inputs": {name: str(path) for name, path in self.inputs.items()},
            "outputs": {name: str(path) for name, path in (self.outputs or {}).items()},
        }


def run_apart(folder: Path, schedules: Sequence[object], settings: RunSettings) -> StreamRun:
    """Run a plan in a process of its own.

    Schedules are plan documents, None for the folder's own, or budgets (bytes over idle) whose stored schedules are taken; the
    session changes from one to the next.
    """
    job = settings.job(folder, schedules)
    return work_apart("edgeplan.measurement.process.streaming", job, StreamRun, f"plan in {folder}", settings.timeout_seconds)


class StreamProfile(_Document):
    """A profile of streaming holds a program's times and memory on a device.

    Attributes:
        compute_ms: of each step, its weights in memory: the median over inferences.
        bytes_per_ms: of reading weights, as memory holds them, all lanes together: the median over passes.
        read_ms: of a read besides its bytes; profiles of before do not say.
        objects_bytes: memory that running takes beside the arena: kernels, descriptors, pages of the library, stacks, page
            tables; and pages by which runs differ.
        making, running: pages of the library that making kernels and executing them need: the first of each run of them,
            and how many; profiles of before do not say.
        others: share of the processors' time that other work had meanwhile, 0 to 1.
        widened_per_ms: bytes of values that are widened in a ms; 0 where weights are stored whole.
        first_step_ms: of each step, the first time that it is executed; profiles of before do not say.
    """

    compute_ms: tuple[Annotated[float, Field(ge=0)], ...]
    bytes_per_ms: Annotated[float, Field(gt=0)]
    lanes: int
    objects_bytes: _Bytes
    idle_bytes: _Bytes
    run_ms: tuple[float, ...]
    lowest: tuple[_Bytes, ...]
    others: Annotated[float, Field(ge=0, le=1)] = 0.0
    read_ms: Annotated[float, Field(ge=0)] = 0.0
    making: tuple[_Bytes, ...] = ()
    running: tuple[_Bytes, ...] = ()
    widened_per_ms: Annotated[float, Field(ge=0)] = 0.0
    first_step_ms: tuple[Annotated[float, Field(ge=0)], ...] = ()

    @property
    def reader(self) -> Reader:
        """Make the reader that weights are read with."""
        return Reader.measured(self.bytes_per_ms, self.lanes, self.read_ms, self.widened_per_ms)

    @property
    def unsure(self) -> float:
        """Return how far the quartiles of the inferences lie apart, over their median: times are sure to that.

        The first inference warms up and is left out; 0 where there are not two besides.
        """
        times = sorted(self.run_ms[1:])
        if len(times) < _FEWEST_TIMES:
            return 0.0
        low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
        return (high - low) / middle if middle > 0 else 0.0


#: Reads in flight: more gain nothing.
LANES = 2


def profile_program(folder: Path, program: StreamProgram, settings: RunSettings) -> StreamProfile:
    """Measure a program with all its weights in memory, and the disk that they come from.

    The settings ask for times of steps and at least one bandwidth pass.
    """
    schedule = all_resident(program)
    others = Others(tuple({*settings.processors, *settings.reader_processors}))
    found = run_apart(folder, [schedule], settings)
    share = round(others.share(), 2)
    steps = np.median(np.array(found.phases[0].step_ms[1:] or found.phases[0].step_ms), axis=0)
    return StreamProfile(
        compute_ms=tuple(round(float(ms), 6) for ms in steps),
        bytes_per_ms=statistics.median(found.bytes_per_ms) or _UNREAD_BYTES_PER_MS,
        lanes=LANES,
        objects_bytes=max(0, found.taken_bytes - int(schedule["arena_bytes"])) + _SPARE_BYTES,
        idle_bytes=found.idle.rss,
        run_ms=found.phases[0].run_ms,
        lowest=tuple(schedule["tensor_offset"]),
        others=share,
        read_ms=round(found.read_ms, 6),
        widened_per_ms=round(found.widened_per_ms, 3),
        making=found.making,
        running=found.running,
        first_step_ms=tuple(round(ms, 6) for ms in found.phases[0].step_ms[0]),
    )


def on_demand(plan: MemoryPlan) -> dict[str, Any]:
    """Return the schedule of a plan that loads nothing ahead: each step's weights once the step before has ended."""
    loads = [offset >= 0 and again != k for k, (offset, again) in enumerate(zip(plan.weight_offset, plan.again, strict=True))]
    after = [k - 1 if load else -1 for k, load in enumerate(loads)]
    last = len(plan.steps) - 1
    again = [(last if not k else -1) if load else plan.again[k] for k, load in enumerate(loads)]
    return plan.model_dump() | {"after": after, "again": again}
