"""A plan of a pair run in a process of its own, for what it takes: `python -m edgeplan.chapters.partition.measuring.worker`.

JSON on stdin, JSON on stdout. Idle is the process with both processors open and no model.
"""

from __future__ import annotations

import gc
import resource
import sys
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.partition.inference import inputs_of
from edgeplan.chapters.partition.measuring.opened import opened
from edgeplan.chapters.partition.planned import check_opened, model_of, read_folder, session_of
from edgeplan.measurement.process.inputs import random_inputs_of
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
    about, found = read_folder(job.folder)
    model = model_of(about, None, job.folder)
    with opened(about.pair) as pair:
        check_opened(about, pair, job.folder)
        gc.collect()
        idle = resident()["rss"]
        reset_peak()
        with session_of(pair, model, found) as session:
            inputs = random_inputs_of(inputs_of(model))
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
