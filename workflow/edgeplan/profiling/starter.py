"""Starts calibrating plans in fresh processes, by turns, those that were disturbed again while there is time."""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.process.child import Forks
from edgeplan.measurement.process.clock import Clock
from edgeplan.measurement.process.job import RunJob
from edgeplan.profiling.check import STAGES, measured_ms
from edgeplan.support.workers import ColdRunError

Key = TypeVar("Key", bound=Hashable)
_MOST_LOST = 0.9
_SLIGHT = 0.1  # of a start, lost to others and taken off, is less than starts differ by


@dataclass(frozen=True, slots=True)
class _Start:
    """A start has times at nominal speed, waiting taken off, and the share of it that was lost to others."""

    times_ms: Mapping[str, float]
    lost: float


@dataclass(frozen=True, slots=True)
class Starter:
    """A starter starts plans in fresh processes.

    Attributes:
        clock: the profile's; with a watch of all cores quiet moments are waited for.
        forks: the processes; those of a clock with a watch are made anew, as for the starts that are published.
        repeats: starts of each plan.
        retries: further starts, for as long as all of a plan were disturbed.
        budget: beyond it each plan is started once.
        thorough: whether plans of raw weights are started beside an execution, too; else those of cached ones stand for them.
    """

    clock: Clock
    forks: Forks
    repeats: int
    retries: int
    budget: TimeBudget
    thorough: bool = True

    def start(self, jobs: Mapping[Key, RunJob]) -> tuple[dict[Key, dict[str, float]], float]:
        """Start each job by turns, so that drift meets all alike.

        Returns:
            For each job the medians of `total` and of `STAGES` over the starts that nobody disturbed, else those of the start
            that was disturbed least; and the share of the jobs that it was so for.
        """
        if self.clock.watch is not None:
            return measured_ms(jobs, self.repeats, self.clock), 0.0
        made: dict[Key, list[_Start]] = {key: [] for key in jobs}
        for turn in range(self.repeats + self.retries):
            for key, job in jobs.items():
                enough = turn >= self.repeats and any(start.lost <= _SLIGHT for start in made[key])
                if not made[key] or not (enough or self.budget.over):
                    made[key].append(self._one(job))
        noisy = sum(all(start.lost > _SLIGHT for start in starts) for starts in made.values())
        return {key: _typical(starts) for key, starts in made.items()}, noisy / max(len(jobs), 1)

    def _one(self, job: RunJob) -> _Start:
        before = self.clock.now()
        run = self.forks.run_cold(job)
        slowness = self.clock.slowness(before, self.clock.now())
        if run.cold_ms is None:
            raise ColdRunError(f"the plan was not run: {run.reason}", where=job.setting, next_step="plan the model again")
        threads = len(job.cpus) or job.threads
        lost = min((run.waited_ms + run.stolen_ms) / (run.cold_ms * threads), _MOST_LOST)
        times = {"total": run.cold_ms, **{stage: run.stages_ms[stage] for stage in STAGES}}
        return _Start({name: time * (1 - lost) / slowness for name, time in times.items()}, lost)


def _typical(starts: Sequence[_Start]) -> dict[str, float]:
    counting = [start for start in starts if start.lost <= _SLIGHT] or [min(starts, key=lambda start: start.lost)]
    return {name: statistics.median(start.times_ms[name] for start in counting) for name in counting[0].times_ms}
