"""Starts a plan folder cold, each time in a fresh process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from edgeplan.errors import DeviceError
from edgeplan.measurement.process import child
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.runtime import cold_executor
from edgeplan.runtime.folder import PlanFolder, read_folder
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.support.tensors import Array
from edgeplan.support.workers import ColdRunError


def start_apart(
    plan: PlanFolder, values: Mapping[str, Array], repeat: int, cores: Sequence[int], *, evicted: bool
) -> tuple[tuple[float, ...], bool]:
    """Start a plan cold in fresh processes, on random inputs: the time of each start (ms), and whether the plan is continuous.

    A run in this process, on `values`, says what is wrong where a fresh one fails, and repairs the cache.
    """
    program = cast("LinkedProgram", plan.program)
    executing, preparing = cold_executor.processors_of(program, cores)
    if preparing and preparing[0] < executing[-1]:  # a fresh process takes the lowest-numbered ones to execute
        raise DeviceError(
            f"little core {preparing[0]} is numbered below big core {executing[-1]}: a fresh process would execute on it",
            where="the device, fields big_cores and little_cores",
            next_step="run without --cold, which takes the cores as they are named",
        )
    continuous = bool(plan.scheduled(cold_executor.ColdSchedule).later)
    fields = {
        "setting": "edgeplan-continuous" if continuous else "edgeplan",
        "threads": program.threads,
        "cpus": (*executing, *preparing),
        "state": "evicted" if evicted else "cached",
        **job_inputs(program.inputs),
    }

    def start() -> float:
        for _ in range(2):
            try:
                result = child.run_cold(RunJob.model_validate(fields | {"artefact": prepared(plan.path).artefact}))
                if result.cold_ms is not None:
                    return result.cold_ms
                reason = result.reason
            except ColdRunError as error:
                reason = error.reason
            with cold_executor.open_cold(read_folder(plan.path), cores) as session:
                session.run(values)
        what, again = f"cannot start cold: {reason}", "plan the model again: edgeplan plan cold-start"
        raise ColdRunError(what, where=str(plan.path), next_step=again)

    return tuple(start() for _ in range(repeat)), continuous
