"""A plan and the same program with all weights in memory, in turns within one session: what is near in time is compared.

One process differs from another by more than a plan from its bound, and the minutes of a machine differ, too. So each phase of
the plan stands between two phases with all weights in memory, whose times, and the bound by the times of their steps, are the
ones that it is held to.

The paper's phones compute for about three times as long as they read. A processor is slowed by prolonging its steps, awake,
until that is so of what is measured in the same session; where it computes for longer by itself, the ratio says so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from edgeplan.chapters.memory.folders import CostedProgram
from edgeplan.chapters.memory.paper import RATIO_TOLERANCE
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner
from edgeplan.chapters.memory.programs import ModelPrograms
from edgeplan.chapters.memory.studies import StudiedModel
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.background import background_load
from edgeplan.planning.memory.workload import period_ms
from edgeplan.profiling.streaming import StreamPhase, StreamRun, run_apart
from edgeplan.runtime.streaming.workloads import all_resident, workload_of
from edgeplan.support.numerics import median_ends
from edgeplan.support.workers import ColdRunError

#: Alternations of one session.
CHUNK = 5
_PHASE_MS = 200.0  # a phase is about as long, its first inference left out
_MOST_RUNS = 12
_DECIDED = 0.01  # no further session where the interval of the median ratio reaches no farther on either side
_CHANCE = 0.04  # of each side of that interval
_PASSES = 3  # of reading all weights, at the end of each session
_NEAR = RATIO_TOLERANCE / 2
_ATTEMPTS = 4  # to come near it
_SLOWING_RUNS = 5
_DECIDED_NEAR = 0.004  # the bar is at 0.04
_ALL_OF_A_CORE = 100  # per cent


@dataclass(frozen=True, slots=True)
class Turn:
    """One phase of a plan between two phases with all weights in memory, times in milliseconds.

    Attributes:
        median_ms, resident_ms: median inferences, of the plan and with all weights in memory.
        bound_ms: of the plan's budget, at the times of steps in the neighbouring phases and the bandwidth of the session.
        wait_ms: between steps in the plan's phase, more than in its neighbours.
        ratio: computing in the neighbours over reading all weights.
        factor: computing there over computing without what steps are prolonged by.
        bytes_per_ms: of reading.
    """

    median_ms: float
    resident_ms: float
    bound_ms: float
    wait_ms: float
    ratio: float
    factor: float
    bytes_per_ms: float


@dataclass(frozen=True, slots=True)
class Turns:
    """Turns hold what alternated in some sessions.

    Attributes:
        turns: in order.
        peak: of the sessions, over idle: all weights and all else.
        digests: of the outputs, the different ones.
    """

    turns: tuple[Turn, ...]
    peak: int
    digests: frozenset[str]

    def median(self, of: Callable[[Turn], float]) -> float:
        """Return the median over the turns."""
        return statistics.median(map(of, self.turns))

    def rows(self, of: str) -> Iterator[dict[str, Any]]:
        """Yield the turns as rows of the stage; `of` is what was run in turns."""
        for place, turn in enumerate(self.turns):
            yield {"case": "turn", "setting": of, "place": place} | asdict(turn)


def in_turns(
    candidate: CostedProgram,
    plan: Mapping[str, Any],
    programs: ModelPrograms,
    alternations: int,
    *,
    slowed: Callable[[Sequence[Turn]], Sequence[int]] = lambda _: (),
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
    decided: float = _DECIDED,
) -> Turns:
    """Run a plan in turns with all weights in memory, in sessions of a few alternations, until what they cost is known.

    Nanoseconds to prolong each step by (`slowed`), from the turns so far, are asked before each session; `beside` goes on
    meanwhile. There is no further session where the median ratio is known to `decided`.
    """
    turns: list[Turn] = []
    digests: set[str] = set()
    peak = 0
    while len(turns) < alternations and not known(turns, decided):
        count = min(CHUNK, alternations - len(turns))
        with beside():
            found, slow = _session(candidate, plan, programs, count, tuple(slowed(turns)))
        turns += _turns(candidate, plan, found, slow)
        peak = max(peak, found.peak_over_idle)
        digests |= {digest for phase in found.phases for digest in phase.digests}
    return Turns(tuple(turns), peak, frozenset(digests))


def known(turns: Sequence[Turn], decided: float) -> bool:
    """Tell whether the interval of the median ratio of plan and all weights in memory is narrow enough."""
    ratios = sorted(turn.median_ms / turn.resident_ms for turn in turns)
    ends = median_ends(len(ratios), _CHANCE)
    if ends is None:
        return False
    middle = statistics.median(ratios)
    return middle - ratios[ends[0]] <= decided and ratios[ends[1]] - middle <= decided


def resident_run(candidate: CostedProgram, programs: ModelPrograms, runs: int, slowed_ns: Sequence[int] = ()) -> StreamRun:
    """Run a program with all weights in memory alone, with times of its steps and the bandwidth of reading."""
    settings = replace(programs.settings(runs), steps=True, bandwidth_passes=_PASSES, slowed_ns=slowed_ns)
    return run_apart(candidate.folder, [all_resident(candidate.program)], settings)


def computing_ms(phases: Sequence[StreamPhase]) -> list[float]:
    """Return the median time of each step over all inferences of some phases but the first of each."""
    times: list[float] = np.median(np.array([ms for phase in phases for ms in phase.step_ms[1:]]), axis=0).tolist()
    return times


def reading_ms(candidate: CostedProgram, bytes_per_ms: float) -> float:
    """Return the time to read all weights, nothing else running."""
    return float(candidate.workload.weight_bytes.sum()) / bytes_per_ms


def _session(
    candidate: CostedProgram, plan: Mapping[str, Any], programs: ModelPrograms, alternations: int, slowed_ns: tuple[int, ...]
) -> tuple[StreamRun, float]:
    """Run a session, and return with it by how many milliseconds steps were prolonged."""
    wide = all_resident(candidate.program)
    # one arena for both: it would be given back and asked for again with each phase
    own = dict(plan) | {"arena_bytes": max(plan["arena_bytes"], wide["arena_bytes"])}
    expected_ms = float(candidate.workload.compute_ms.sum()) + sum(slowed_ns) / 1e6
    runs = 1 + max(1, min(_MOST_RUNS, round(_PHASE_MS / max(expected_ms, 1e-3))))
    settings = replace(programs.settings(runs), steps=True, followed=True, bandwidth_passes=_PASSES, slowed_ns=slowed_ns)
    schedules = [wide, *(schedule for _ in range(alternations) for schedule in (own, wide))]
    return run_apart(candidate.folder, schedules, settings), sum(slowed_ns) / 1e6


def _turns(candidate: CostedProgram, plan: Mapping[str, Any], found: StreamRun, slowed_ms: float) -> Iterator[Turn]:
    rate = statistics.median(found.bytes_per_ms) or candidate.profile.bytes_per_ms
    reader = replace(candidate.reader, bytes_per_ms=rate)
    for phase, neighbours in zip(found.phases[1::2], pairwise(found.phases[::2]), strict=True):
        steps = computing_ms(neighbours)
        total = sum(steps)
        wide = statistics.median([ms for near in neighbours for ms in near.run_ms[1:]])
        waits = statistics.median([ms for near in neighbours for ms in near.wait_ms[1:]])
        read_ms = reading_ms(candidate, rate)
        yield Turn(
            median_ms=statistics.median(phase.run_ms[1:]),
            resident_ms=wide,
            bound_ms=period_ms(workload_of(candidate.program, steps), reader, plan["budget_bytes"]),
            wait_ms=statistics.median(phase.wait_ms[1:]) - waits,
            ratio=total / read_ms if read_ms else math.inf,
            factor=total / (total - slowed_ms) if total > slowed_ms else 1.0,
            bytes_per_ms=rate,
        )


class Slowing:
    """Finds by how much steps are prolonged so that computing takes a number of times as long as reading all weights."""

    def __init__(self, candidate: CostedProgram, programs: ModelPrograms, ratio: float) -> None:
        self._candidate, self._ratio = candidate, ratio
        self._run = partial(resident_run, candidate, programs, _SLOWING_RUNS)
        self._steps = np.array(candidate.profile.compute_ms)
        self._added = 0.0  # what steps are prolonged by, over their times of the profile
        self.reached = 0.0

    def prolonged_ns(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Nanoseconds to prolong each step by; measured again before each session, since the disk and the machine change.

        Where the last one of the turns before was near enough, nothing is measured.
        """
        if turns and abs(turns[-1].ratio - self._ratio) <= _NEAR:
            return self._slowed()
        for _ in range(_ATTEMPTS):
            slowed = self._slowed()
            found = self._run(slowed)
            compute = sum(computing_ms(found.phases))
            read = reading_ms(self._candidate, statistics.median(found.bytes_per_ms) or self._candidate.profile.bytes_per_ms)
            self.reached = compute / read if read else float("inf")
            native = max(compute - sum(slowed) / 1e6, 1e-6)
            wanted = max(0.0, self._ratio * read - native) / float(self._steps.sum())
            if abs(self.reached - self._ratio) <= _NEAR or wanted == self._added == 0:
                break
            self._added = wanted
        return self._slowed()

    def _slowed(self) -> tuple[int, ...]:
        return tuple((1e6 * self._added * self._steps).astype(np.int64).tolist()) if self._added else ()


def slowed(subject: StudiedModel, planner: Planner, least: MemoryPlanned) -> Iterator[dict[str, Any]]:
    """Run the least plan in turns on a slowed processor, and hold it to engines that would be slowed alike.

    An engine with all that it wants reads nothing while it computes: a processor that computes for `factor` times as long takes
    `factor` times as long for it.
    """
    settings = subject.settings
    slowing = Slowing(least.candidate, planner.programs, settings.slowed_ratio)
    before = dict(_stock_ms(subject))
    turns = in_turns(
        least.candidate, least.document.model_dump(), planner.programs, settings.alternations, slowed=slowing.prolonged_ns,
        decided=_DECIDED_NEAR,
    )  # fmt: skip
    yield from turns.rows("slowed")
    yield {"case": "slowed", "setting": "edgeplan", **_over_resident(turns), "peak": least.run.peak_over_idle}
    after = dict(_stock_ms(subject))
    own = turns.median(lambda turn: turn.median_ms / turn.factor)
    for setting, times in before.items():
        row: dict[str, Any] = {"case": "slowed", "setting": setting}
        if isinstance(times, str):
            yield row | {"reason": times}
            continue
        again = after[setting]
        theirs = statistics.median([*times, *(again if not isinstance(again, str) else ())])
        yield row | {"median_ms": own / theirs - 1, "least_ms": theirs, "pairs": len(turns.turns)}


def busy(subject: StudiedModel, planner: Planner, least: MemoryPlanned) -> Iterator[dict[str, Any]]:
    """Run the least plan in turns while a loop keeps the other core busy, the one that weights are read on."""
    reader = next((core for core in subject.cores.reader if core not in subject.cores.compute), None)
    if reader is None:
        yield {"case": "busy", "reason": "there is no other core"}
        return
    turns = in_turns(
        least.candidate, least.document.model_dump(), planner.programs, subject.settings.alternations, decided=_DECIDED_NEAR,
        beside=lambda: background_load(reader, _ALL_OF_A_CORE),
    )  # fmt: skip
    yield from turns.rows("busy")
    yield {"case": "busy", "setting": "edgeplan", **_over_resident(turns), "peak": least.run.peak_over_idle}


def _over_resident(turns: Turns) -> dict[str, Any]:
    """Return the columns of a row that say what a plan costs over all weights in memory."""
    costs = [turn.median_ms / turn.resident_ms - 1 for turn in turns.turns]
    return {
        "median_ms": statistics.median(costs), "least_ms": min(costs), "pairs": len(costs),
        "wait_ms": turns.median(lambda turn: turn.wait_ms / turn.resident_ms),
        "ratio": turns.median(lambda turn: turn.ratio), "factor": turns.median(lambda turn: turn.factor),
        "equal": float(len(turns.digests) == 1),
    }  # fmt: skip


def _stock_ms(subject: StudiedModel) -> Iterator[tuple[str, tuple[float, ...] | str]]:
    """Times of the engines that the slowed plan is held to, or why one has none; each prepared once."""
    for setting in subject.settings.slowed_beside:
        folder = subject.work / f"beside-{setting}"
        try:
            folder.mkdir(exist_ok=True)
            found = stock.run_model(setting, subject.model, folder, subject.cores.compute, subject.settings.runs)
            yield setting, found.run_ms[1:]
        except ColdRunError as error:
            yield setting, error.reason
