"""This module holds the outcome of a planner, and writes it down as a plan."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from edgeplan.planning.bounds import cache_bytes, read_bytes
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.machine import MAIN, KernelSchedule, Span, costs_of, simulate
from edgeplan.planning.optimal import Search, optimal
from edgeplan.planning.profile import SOURCES, Candidate, Disk, Profile


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome is the planned schedule of one layout, with its bound.

    Attributes:
        profile: with the candidates that the schedule's choice counts in.
        schedule: choice, places, widening.
        makespan_ms: predicted, the start included.
        note: how the planner searched.
        lower_bound_ms: what no schedule of this layout beats, if the planner proved something; beside a faster layout planned
            before, no more than is needed to give this one up.
        disk: where the weights come from, if not from memory.
    """

    profile: Profile
    schedule: KernelSchedule
    makespan_ms: float
    note: str
    lower_bound_ms: float | None = None
    disk: Disk | None = None

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """Return the chosen candidates, by step."""
        return tuple(layer.candidates[o] for layer, o in zip(self.profile.layers, self.schedule.choice, strict=True))

    def timeline(self) -> tuple[Span, ...]:
        """Return the spans of work on each core, for a Gantt picture."""
        return simulate(self.profile, self.schedule, self.disk)[1]


def optimal_outcome(profile: Profile, search: Search | None = None, *, beat_ms: float = math.inf) -> Outcome:
    """Return the optimal planner's outcome for a profile, whose start counts.

    Args:
        profile: with the candidates to choose from.
        search: settings.
        beat_ms: the best makespan of another layout; only faster plans are of interest.
    """
    start = profile.start_ms
    planned = optimal(costs_of(profile), search, beat_ms=beat_ms - start)
    return Outcome(profile, planned.schedule, start + planned.makespan_ms, planned.note, start + planned.lower_bound_ms)


def document(
    outcome: Outcome,
    planner: str,
    target: Target,
    *,
    bound_ms: float,
    costs: Literal["profiled", "predicted"] = "profiled",
    planning_ms: float = 0.0,
) -> Plan:
    """Write an outcome down as a plan."""
    profile, schedule, chosen = outcome.profile, outcome.schedule, outcome.chosen
    implementations = sorted({c.implementation for c in chosen})
    return Plan(
        **asdict(target),
        planner=planner,
        costs=costs,
        note=outcome.note,
        layout=profile.layout,
        equal_cores=profile.equal,
        little_ratio=profile.little_ratio,
        steps=tuple(layer.name for layer in profile.layers),
        implementations=tuple(implementations),
        implementation=tuple(implementations.index(c.implementation) for c in chosen),
        source=tuple(SOURCES.index(c.source) for c in chosen),
        main=schedule.queue(MAIN),
        queues=tuple(schedule.queue(q) for q in range(profile.queues)),
        widen_from=schedule.widen_from,
        makespan_ms=round(outcome.makespan_ms, 6),
        lower_bound_ms=round(min(bound_ms, outcome.makespan_ms), 6),
        planning_ms=round(planning_ms, 3),
        read_bytes=read_bytes(chosen),
        cache_bytes=cache_bytes(chosen),
        disk_mb_per_s=outcome.disk.mb_per_s if outcome.disk is not None else None,
        disk_latency_ms=outcome.disk.latency_ms if outcome.disk is not None else None,
        noise=round(profile.noise, 4),
        others=round(profile.others, 4),
    )
