"""Starts a plan folder cold, each time in a fresh process of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from edgeplan.errors import DeviceError
from edgeplan.measurement.process import child
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.program_file import ProgramHead
from edgeplan.support.tensors import Array
from edgeplan.support.workers import ColdRunError


def start_apart(
    plan: PlanFolder, values: Mapping[str, Array], repeat: int, cores: Sequence[int], *, evicted: bool
) -> tuple[tuple[float, ...], bool]:
    """Start a plan cold in fresh processes, on random inputs: the time of each start (ms), and whether the plan is continuous.

    A run in this process, on `values`, says what is wrong where a fresh one fails.
    """
    program = plan.head
    executing, preparing = _processors_of(program, cores)
    if preparing and preparing[0] < executing[-1]:  # a fresh process takes the lowest-numbered ones to execute
        raise DeviceError(
            f"little core {preparing[0]} is numbered below big core {executing[-1]}: a fresh process would execute on it",
            where="the device, fields big_cores and little_cores",
            next_step="run without --cold, which takes the cores as they are named",
        )
    fields = {
        "setting": "edgeplan-continuous" if program.continuous else "edgeplan",
        "threads": program.threads,
        "cpus": (*executing, *preparing),
        "state": "evicted" if evicted else "cached",
        **job_inputs(program.inputs),
    }

    def start() -> float:
        try:
            result = child.run_cold(RunJob.model_validate(fields | {"artefact": prepared(plan.path).artefact}))
            if result.cold_ms is not None:
                return result.cold_ms
            reason = result.reason
        except ColdRunError as error:
            reason = error.reason
        with open_session(plan.path, processors=cores) as session:
            session.run(values)
        what, again = f"cannot start cold: {reason}", "plan the model again: edgeplan plan cold-start"
        raise ColdRunError(what, where=str(plan.path), next_step=again)

    return tuple(start() for _ in range(repeat)), program.continuous


def _processors_of(program: ProgramHead, given: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The processors that execute a program, and those that only prepare, as asymmetric chips have them.

    Args:
        program: of a plan folder.
        given: to choose from, those that execute first; none: those that this process may use.
    """
    executing, preparing = program.threads, 0 if program.equal_cores else program.queues
    found = tuple(given) or tuple(sorted(os.sched_getaffinity(0)))
    if len(found) < executing + preparing:
        raise DeviceError(
            f"the plan needs {executing} processors to execute and {preparing} beside them to prepare, "
            f"there are {len(found[:executing])} and {len(found[executing:])}",
            where="the processors named" if given else "processors that this process may use",
            next_step="name the device that it was planned for with --device, allow more processors, or plan the model again",
        )
    # sorted, as a fresh process takes them: cores of one class stand for each other
    return tuple(sorted(found[:executing])), tuple(sorted(found[executing : executing + preparing]))
