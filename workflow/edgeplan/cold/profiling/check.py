"""How true a profile is: a plan's prediction beside cold starts of it in fresh processes, stage by stage."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeplan.cold.attempts import start_cold
from edgeplan.cold.baselines.edgeplan import prepared
from edgeplan.cold.clock import Clock
from edgeplan.cold.jobs import RunJob, RunResult
from edgeplan.cold.process import ColdRunError, run_cold
from edgeplan.planning.cold_start.machine import MAIN, Schedule, core_name, simulate
from edgeplan.planning.cold_start.plan import Plan
from edgeplan.planning.cold_start.profile import SOURCES, Profile

STAGES = ("open", "read", "create", "transform", "execute")


@dataclass(frozen=True, slots=True)
class Check:
    """Predicted and measured milliseconds: `total`, then `STAGES` summed over cores; an execution counts once, however wide."""

    model: str
    predicted_ms: Mapping[str, float]
    measured_ms: Mapping[str, float]

    @property
    def lines(self) -> tuple[str, ...]:
        """A table: stage, predicted, measured, predicted / measured."""
        rows = [(s, self.predicted_ms[s], self.measured_ms[s]) for s in ("total", *STAGES)]
        body = [f"  {s:<10}{p:9.2f}{m:9.2f}{p / m if m else 1:7.2f}" for s, p, m in rows]
        return (f"{self.model:<12}predicted measured  ratio", *body)


def predicted_ms(profile: Profile, plan: Plan) -> dict[str, float]:
    """What a profile says of a plan made from it: the makespan (`total`) and the stages, contention included."""
    choice = []
    for layer, implementation, source in zip(profile.layers, plan.implementation, plan.source, strict=True):
        wanted = (plan.implementations[implementation], SOURCES[source])
        choice.append([(c.implementation, c.source) for c in layer.candidates].index(wanted))
    place = {k: q for q, queue in enumerate(plan.queues) for k in queue}
    schedule = Schedule(tuple(choice), tuple(place.get(k, MAIN) for k in range(len(choice))), plan.widen_from)
    makespan_ms, spans = simulate(profile, schedule)
    sums = {"total": makespan_ms} | dict.fromkeys(STAGES, 0.0) | {"open": profile.start_ms}
    for span in spans:
        if span.stage != "execute" or span.core == core_name(MAIN):
            sums[span.stage] += span.end_ms - span.start_ms
    return sums


def check(
    profiles: Iterable[Profile],
    plan: Plan,
    folder: Path,
    inputs: Mapping[str, tuple[int, ...]],
    *,
    cpus: tuple[int, ...],
    repeats: int = 9,
    clock: Clock | None = None,
) -> Check:
    """Start a plan folder cold in fresh processes, the page cache warm, and hold the medians against the prediction.

    Args:
        profiles: that the plan was made from.
        plan: the plan.
        folder: built from it.
        inputs: shape of each input of the model.
        cpus: processors to run on.
        repeats: fresh processes.
        clock: the profile's; what is measured is brought to its nominal speed. Without it the runs count as they are.

    Raises:
        ColdRunError: a run failed.
    """
    profile = next(p for p in profiles if p.layout == plan.layout)
    ready = prepared(folder)
    job = RunJob.model_validate(
        {
            "setting": "edgeplan",
            "threads": plan.threads,
            "cpus": cpus,
            "artefact": ready.artefact,
            "inputs": dict(inputs),
            "state": "cached",
        }
    )
    runs: list[tuple[float, RunResult]] = []
    for _ in range(repeats):
        if clock:
            made = start_cold(job, clock.now, clock.watch)
            run, slowness = made.result, clock.slowness(made.references)
        else:
            run, slowness = run_cold(job), 1.0
        if run.cold_ms is None:
            raise ColdRunError(f"the plan was not run: {run.reason}", where=str(folder), next_step="plan the model again")
        runs.append((slowness, run))
    measured = {"total": statistics.median((run.cold_ms or 0.0) / slowness for slowness, run in runs)}
    measured |= {stage: statistics.median(run.stages_ms[stage] / slowness for slowness, run in runs) for stage in STAGES}
    return Check(plan.model, predicted_ms(profile, plan), measured)
