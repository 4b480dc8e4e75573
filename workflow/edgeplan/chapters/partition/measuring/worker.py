"""A plan of a pair run in a process of its own, for what it takes: `python -m edgeplan.chapters.partition.measuring.worker`.

JSON on stdin, JSON on stdout. Idle is the process with both processors open and no model.
"""

from __future__ import annotations

import gc
import resource
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.engines.pair import open_on, open_processors
from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.runtime.folder import PARTITION, read_folder
from edgeplan.runtime.partitioned.document import PairSchedule
from edgeplan.support.memory_counters import reset_peak, resident


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PairJob(_Document):
    """A plan to run.

    Attributes:
        folder: of the plan.
        runs: inferences.
    """

    kind: Literal["pair"] = "pair"
    folder: Path
    runs: Annotated[int, Field(ge=1, le=100_000)]


class PairResult(_Document):
    """What the process says of itself.

    Attributes:
        idle, peak: resident memory before the model was opened, and at most, in bytes.
        cpu_ms: processor time of all runs, of all threads.
    """

    idle: int
    peak: int
    cpu_ms: float


def run(job: PairJob) -> PairResult:
    """Run the plan."""
    plan = read_folder(job.folder, PARTITION)
    with ExitStack() as stack:
        host, other = open_processors(plan.scheduled(PairSchedule).processors, stack)
        gc.collect()
        idle = resident()["rss"]
        reset_peak()
        session = stack.enter_context(open_on(plan, host, other))
        inputs = random_inputs_of(session.inputs)
        session.run(inputs)
        before = _cpu_ms()
        for _ in range(job.runs):
            session.run(inputs)
        return PairResult(idle=idle, peak=resident()["peak"], cpu_ms=_cpu_ms() - before)


def _cpu_ms() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e3


if __name__ == "__main__":
    sys.stdout.write(run(PairJob.model_validate_json(sys.stdin.buffer.read())).model_dump_json())
