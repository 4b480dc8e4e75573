"""A plan at its least memory where a phone would differ: a processor that is slower, or whose other core is busy.

The paper's phones compute for about three times as long as they read. A processor is slowed by prolonging its steps, awake,
until that is so of what is measured in the same session; where it computes for longer by itself, the ratio says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from edgeplan.chapters.memory.costed import CostedProgram
from edgeplan.chapters.memory.paper import RATIO_TOLERANCE
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner
from edgeplan.chapters.memory.studies import StudiedModel
from edgeplan.chapters.memory.turns import Turn, Turns, computing_ms, in_turns, reading_ms, resident_run
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.background import background_load
from edgeplan.support.workers import ColdRunError

_NEAR = RATIO_TOLERANCE / 2
_ATTEMPTS = 4  # to come near it
_RUNS = 5
_DECIDED = 0.004  # the bar is at 0.04
_ALL_OF_A_CORE = 100  # per cent


class Slowing:
    """Finds by how much steps are prolonged so that computing takes a number of times as long as reading all weights.

    Args:
        candidate: the program.
        planner: of the model.
        ratio: that is asked for.
    """

    def __init__(self, candidate: CostedProgram, planner: Planner, ratio: float) -> None:
        self._candidate, self._ratio = candidate, ratio
        self._run = partial(resident_run, candidate, planner, _RUNS)
        self._steps = np.array(candidate.profile.compute_ms)
        self._added = 0.0  # what steps are prolonged by, over their times of the profile
        self.reached = 0.0

    def prolonged_ns(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Nanoseconds to prolong each step by; measured again before each session, since the disk and the machine change.

        Args:
            turns: those before: where the last one was near enough, nothing is measured.
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
    slowing = Slowing(least.candidate, planner, settings.slowed_ratio)
    before = dict(_stock_ms(subject))
    turns = in_turns(
        least.candidate, least.document.model_dump(), planner, settings.alternations, slowed=slowing.prolonged_ns,
        decided=_DECIDED,
    )  # fmt: skip
    yield from turns.rows("slowed")
    yield {"case": "slowed", "setting": "edgeplan", **_over_resident(turns), "peak": least.run.peak_over_idle}
    after = dict(_stock_ms(subject))
    own = turns.median(lambda turn: turn.plan_ms / turn.factor)
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
        least.candidate, least.document.model_dump(), planner, subject.settings.alternations, decided=_DECIDED,
        beside=lambda: background_load(reader, _ALL_OF_A_CORE),
    )  # fmt: skip
    yield from turns.rows("busy")
    yield {"case": "busy", "setting": "edgeplan", **_over_resident(turns), "peak": least.run.peak_over_idle}


def _over_resident(turns: Turns) -> dict[str, Any]:
    """Return the columns of a row that say what a plan costs over all weights in memory."""
    costs = [turn.plan_ms / turn.resident_ms - 1 for turn in turns.turns]
    return {
        "median_ms": statistics.median(costs), "least_ms": min(costs), "pairs": len(costs),
        "wait_ms": turns.median(lambda turn: turn.wait_ms / turn.resident_ms),
        "ratio": turns.median(lambda turn: turn.ratio), "factor": turns.median(lambda turn: turn.factor),
        "equal": float(len(turns.digests) == 1),
    }  # fmt: skip


def _stock_ms(subject: StudiedModel) -> Iterator[tuple[str, tuple[float, ...] | str]]:
    """Times of the engines that the slowed plan is held to, or why one has none; each prepared once."""
    inputs = stock.inputs_of(subject.model)
    for setting in subject.settings.slowed_beside:
        folder = subject.work / f"beside-{setting}"
        try:
            folder.mkdir(exist_ok=True)
            artefact = stock.prepared(setting, subject.model, inputs, folder, subject.settings.threads)
            found = stock.run_stock(setting, artefact, inputs, subject.cores.compute, subject.settings.runs)
            yield setting, found.run_ms[1:]
        except ColdRunError as error:
            yield setting, error.reason
