"""Holds a model against another one in turns, or against a comparison that was kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from edgeplan.comparing.bench import Bench
from edgeplan.comparing.result import Comparison, Held, Row, Verdict
from edgeplan.comparing.turns import Ran, Turns
from edgeplan.comparing.ways import Way
from edgeplan.measurement import others
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.numerics import around_median

#: Looks at what was found so far, after so many rounds; each claims by an interval that is wrong once in 200 times.
_LOOKS, _LEVEL = (10, 15, 20), 0.995
_BLOCKS, _SECONDS = 6, 0.08  # of each model in a round, and of each block at least
_PATIENCE_SECONDS = 10.0  # with a round, whatever the budget
#: Within this of each other two models are as fast; less than half of it is no difference that a verdict is given for.
_ALIKE = 0.04
_STARTS_DIFFER = 0.05  # figures of other processes at another time, on a quiet machine


def in_turns(turns: Turns, way: Way, ours: Bench, theirs: Bench, processors: tuple[int, ...], budget: TimeBudget) -> Held:
    """Start a session of each model in each round, and have them infer in turns: whatever load there is meets both.

    Args:
        turns: what starts sessions.
        way: that both are served by, by one session.
        ours: the model.
        theirs: the other one.
        processors: of each session.
        budget: seconds for all rounds; the first one is in any case.

    Raises:
        EdgeplanError: one of them cannot be served.
    """
    own, other, ratios, runs, seconds = list[float](), list[float](), list[float](), 0, 0.0
    while not ratios or (len(ratios) < _LOOKS[-1] and seconds < budget.left_s):
        began = time.monotonic()
        pair = [[bench.server(way.engine).session(way.threads, processors, runs)] for bench in (ours, theirs)]
        step = 1 if len(ratios) % 2 == 0 else -1  # who is started first
        ran = turns.run(*pair[::step], seconds=_SECONDS, patience=max(budget.left_s, _PATIENCE_SECONDS), blocks=_BLOCKS)
        (mine,), (yours,) = ran[::step]
        own.append(mine.later_ms)
        other.append(yours.later_ms)
        ratios.append(median(a / b for a, b in zip(_by_block(mine), _by_block(yours), strict=True)))
        runs = int(_BLOCKS * _SECONDS * 1e3 / max(own[-1], other[-1]))
        seconds = time.monotonic() - began
        if len(ratios) in _LOOKS and judged(ratios)[2] != "not told apart":
            break
    low, high, verdict = judged(ratios)
    few = f"a verdict takes {_LOOKS[0]} rounds: give more seconds" if len(ratios) < _LOOKS[0] else ""
    return Held(way.name, median(own), median(other), median(ratios), low, high, len(ratios), verdict, few)


def _by_block(ran: Ran) -> list[float]:
    return [median(block) for block in ran.blocks]


def judged(ratios: Sequence[float]) -> tuple[float, float, Verdict]:
    """Return the ends of the interval of the median of all rounds' ratios, and what follows."""
    low, high, sure = around_median(ratios, _LEVEL)
    return low, high, _verdict(median(ratios), low, high, _ALIKE) if sure else "not known"


def _verdict(found: float, low: float, high: float, alike: float) -> Verdict:
    if low > 1 and found > 1 + alike / 2:
        return "slower"
    if high < 1 and found < 1 - alike / 2:
        return "faster"
    return "the same" if 1 - alike < low and high < 1 + alike else "not told apart"


def with_kept(now: Comparison, kept: Comparison) -> tuple[Held, ...]:
    """Hold a comparison against an earlier one, way by way; where the machine was another, or busy, there is no verdict."""
    before, busy = {row.name: row for row in kept.rows}, max(now.others, kept.others)
    reason = "" if (now.machine, now.processors) == (kept.machine, kept.processors) else "it is of another machine"
    if not reason and busy > others.DISTURBED:
        reason = f"other work had {100 * busy:.0f} % of the time: hold it against the file of the other model"
    clock = now.compute_us / kept.compute_us
    return tuple(_with_row(row, before[row.name], clock, reason) for row in now.rows if row.name in before)


def _with_row(row: Row, other: Row, clock: float, reason: str) -> Held:
    """Hold a way against the same one of another time; the ends allow for a clock that was another, and for other processes."""
    (low, high, sure), (least, most, known) = around_median(row.latencies_ms), around_median(other.latencies_ms)
    low, high = low / most / max(clock, 1) / (1 + _STARTS_DIFFER), high / least / min(clock, 1) * (1 + _STARTS_DIFFER)
    reason = reason or ("" if sure and known else "one of them had too few turns: give more seconds")
    ratio, rounds = row.latency_ms / other.latency_ms, min(len(row.latencies_ms), len(other.latencies_ms))
    verdict: Verdict = "not known" if reason else _verdict(ratio, low, high, 2 * _STARTS_DIFFER)
    return Held(row.name, row.latency_ms, other.latency_ms, ratio, low, high, rounds, verdict, reason)
