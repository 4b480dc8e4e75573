"""A profile is checked stage by stage: a plan's prediction beside cold starts of it in fresh processes."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from edgeplan.measurement.process.child import run_cold
from edgeplan.measurement.process.clock import Clock
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.measurement.process.prepared_plan import prepared
from edgeplan.measurement.process.undisturbed_start import start_cold
from edgeplan.planning.document import Plan
from edgeplan.planning.machine import MAIN, KernelSchedule, core_name, simulate
from edgeplan.planning.profile import SOURCES, Profile
from edgeplan.runtime.folder import read_folder
from edgeplan.support.workers import ColdRunError

Key = TypeVar("Key", bound=Hashable)
STAGES = ("open", "read", "create", "transform", "execute")


@dataclass(frozen=True, slots=True)
class Check:
    """Holds predicted and measured milliseconds: `total`, then `STAGES` summed over cores, an execution once however wide."""

    model: str
    predicted_ms: Mapping[str, float]
    measured_ms: Mapping[str, float]


def predicted_ms(profile: Profile, plan: Plan) -> dict[str, float]:
    """Predict the makespan (`total`) and the stages of a plan from its profile, contention included."""
    choice = []
    for layer, implementation, source in zip(profile.layers, plan.implementation, plan.source, strict=True):
        wanted = (plan.implementations[implementation], SOURCES[source])
        choice.append([(c.implementation, c.source) for c in layer.candidates].index(wanted))
    place = {k: q for q, queue in enumerate(plan.queues) for k in queue}
    schedule = KernelSchedule(tuple(choice), tuple(place.get(k, MAIN) for k in range(len(choice))), plan.widen_from)
    makespan_ms, spans = simulate(profile, schedule)
    sums = {"total": makespan_ms} | dict.fromkeys(STAGES, 0.0) | {"open": profile.start_ms}
    for span in spans:
        if span.stage != "execute" or span.core == core_name(MAIN):
            sums[span.stage] += span.end_ms - span.start_ms
    return sums


def start_job(plan: Plan, folder: Path, cpus: tuple[int, ...]) -> RunJob:
    """Return the job of a cold start of a plan folder, the page cache warm.

    Args:
        plan: the plan.
        folder: built from it.
        cpus: processors to run on.
    """
    return RunJob.model_validate(
        {
            "setting": "edgeplan",
            "threads": plan.threads,
            "cpus": cpus,
            "artefact": prepared(folder).artefact,
            "state": "cached",
            **job_inputs(read_folder(folder).head.inputs),
        }
    )


def measured_ms(jobs: Mapping[Key, RunJob], repeats: int, clock: Clock | None) -> dict[Key, dict[str, float]]:
    """Start each job in fresh processes, by turns, so that drift meets all alike.

    Args:
        jobs: cold starts of plans.
        repeats: fresh processes of each.
        clock: what is measured is brought to its nominal speed. Without it the starts count as they are.

    Returns:
        For each job the medians of `total` and of `STAGES`.
    """
    times: dict[Key, list[dict[str, float]]] = {key: [] for key in jobs}
    for _ in range(repeats):
        for key, job in jobs.items():
            run, slowness = _start(job, clock)
            if run.cold_ms is None:
                raise ColdRunError(f"the plan was not run: {run.reason}", where=job.setting, next_step="plan the model again")
            stages = {"total": run.cold_ms, **{stage: run.stages_ms[stage] for stage in STAGES}}
            times[key].append({name: time / slowness for name, time in stages.items()})
    return {key: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for key, runs in times.items()}


def _start(job: RunJob, clock: Clock | None) -> tuple[RunResult, float]:
    if clock is None:
        return run_cold(job), 1.0
    made = start_cold(job, clock.now, clock.watch)
    return made.result, clock.slowness(made.references)
