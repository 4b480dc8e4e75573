"""Measures the candidates of a model in rounds.

A block gives every candidate one sample, at the widths in turn; equal steps of the model take different candidates in the same
round, which saves rounds. Blocks repeat, so the samples of a candidate lie apart in time; two reference loads are timed around
every round and divided out. The first block is a quick look: candidates that can be in no good plan are left out of the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from edgeplan.errors import NoiseError
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.preemption import Preemption
from edgeplan.measurement.process.clock import Clock
from edgeplan.measurement.process.interference import LIMIT
from edgeplan.profiling.rounds import Harness, Round, RoundTimes, Sample
from edgeplan.profiling.settings import ProfileSettings
from edgeplan.profiling.store import NOISE, Row
from edgeplan.profiling.subjects import Group
from edgeplan.support.cpus import calmer

log = logging.getLogger(__name__)
_REPEAT_BLOCKS = 2  # blocks in which the second creation of equal steps is timed
_PREPARING = ("read:big", "create:big", "transform:big")
_EXECUTING = ("first:1", "warm:1")
Samples = dict[str, list[Sample]]
#: Told the rows of a quick look: whether more is worth measuring.
Promising = Callable[[Sequence[Row]], bool]


@dataclass
class _Open:
    """Keeps a group that is being measured: the candidates still of interest, whose turn it is, and the samples of all."""

    group: Group
    alive: list[int]
    turn: list[int] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)


def measure(
    rig: Harness,
    groups: Collection[Group],
    settings: ProfileSettings,
    clock: Clock,
    advance: Callable[[int], None],
    budget: TimeBudget | None = None,
    promising: Promising = lambda _: True,
) -> list[Row]:
    """Measure groups of steps; the other steps of the model run along.

    Args:
        rig: the model.
        groups: groups to be measured, at least one.
        settings: how.
        clock: clock that times are normalised by.
        advance: told the share of the work just done, in thousandths.
        budget: beyond it only the first block at each width is measured; None is unbounded.
        promising: told the rows of the quick look; if it says no, there is no more.
    """
    opened = [_Open(g, list(range(len(g.sizes))), samples=[{} for _ in g.sizes]) for g in groups]
    widths, budget = rig.widths, budget or TimeBudget()
    told = done = noisy = 0
    for block in range(settings.blocks + (0 if settings.strict else settings.retries)):
        width, again = widths[block % len(widths)], set[int]()
        if 0 <= block - (not settings.thorough) < _REPEAT_BLOCKS:  # not of those that only get a look
            again = {s for o in opened for s in o.group.steps}
        for o in opened:
            o.turn = (
                list(o.alive) if block < settings.blocks else [p for p in o.alive if _disturbed(o.samples[p], widths, width)]
            )
        rounds = max(-(-len(o.turn) // len(o.group.steps)) for o in opened)
        for number in range(rounds):
            if block >= len(widths) and budget.over:
                break
            choice = _choices(opened, number)
            times, scale, quiet = quiet_round(rig, Round(choice, width, frozenset(again)), settings, clock)
            done, noisy = done + 1, noisy + (not quiet)
            _collect(opened, choice, times, scale, quiet=quiet or settings.strict)
            share = min(int(1000 * (block + (number + 1) / rounds) / settings.blocks), 1000)
            advance(share - told)
            told = share
        if block == 0 and not promising(_rows(opened)):
            break
        if block == 0 or not settings.strict:
            for o in opened:
                o.alive = _of_interest(o.alive, o.samples, settings, sure=budget.over)
    advance(1000 - told)
    if settings.strict and noisy > settings.max_noisy_share * done:
        raise NoiseError(
            f"the machine is too busy to profile a model: {noisy} of {done} rounds stayed disturbed",
            where=f"home layout {rig.subject.program.home}",
            next_step=f"{calmer()} and run the same command again, or keep such figures with --on-noise keep",
        )
    return _rows(opened)


def undisturbed(samples: Sequence[Sample]) -> tuple[float, ...]:
    """Return the times that count, in ms: those that nobody disturbed, else the least of the others."""
    clean = tuple(s.ms for s in samples if not s.disturbed)
    return clean or (min(s.ms for s in samples),)


def _clean(samples: Sequence[Sample]) -> bool:
    return not all(s.disturbed for s in samples)


def _disturbed(samples: Samples, widths: Sequence[int], width: int) -> bool:
    """Tell whether a stage that a round of a width measures has disturbed samples only."""
    others = tuple(f":{w}" for w in widths if w != width)
    return any(not _clean(found) for stage, found in samples.items() if found and not stage.endswith(others))


def _choices(opened: Sequence[_Open], number: int) -> dict[int, int]:
    """Return the candidates of one round in execution order: equal steps take the next ones of theirs until all had a turn."""
    choice = {}
    for o in opened:
        for place, step in enumerate(o.group.steps, number * len(o.group.steps)):
            if place < len(o.turn):
                choice[step] = o.turn[place]
    return dict(sorted(choice.items()))


def quiet_round(rig: Harness, what: Round, settings: ProfileSettings, clock: Clock) -> tuple[RoundTimes, float, bool]:
    """Return one round: its times, their scale, and whether the machine stayed as it was.

    Where noise is refused, a quiet moment is waited for, and a round that was disturbed is run again, for as often as settings
    say.
    """
    for attempt in range(settings.retries + 1 if settings.strict else 1):
        beside = clock.watch.wait() if clock.watch else 1.0
        before, lost, start = clock.now(), Preemption.now(), time.perf_counter()
        times = rig.run(what, settings.warm_runs)
        lost, elapsed_ms = Preemption.now().since(lost), (time.perf_counter() - start) * 1e3
        # steps that other work of this machine preempted are known one by one; of stolen time only the sum is
        share = (lost.waited_ms if settings.strict else lost.stolen_ms) / elapsed_ms
        after, beside = clock.now(), max(beside, clock.watch.now()) if clock.watch else beside
        ends = clock.slowness(before), clock.slowness(after)
        drift = max(ends) / min(ends) - 1
        quiet = drift <= settings.max_drift and share <= settings.max_waiting and beside <= LIMIT
        if quiet:
            break
        drifted = f"the machine's speed moved by {100 * drift:.0f} %, threads waited {100 * share:.0f} % of the time"
        log.info("round disturbed: %s, processors took %.2f times as long (attempt %d)", drifted, beside, attempt + 1)
    return times, 1 / clock.slowness(before, after), quiet


def _collect(opened: Sequence[_Open], choice: Mapping[int, int], times: RoundTimes, scale: float, *, quiet: bool) -> None:
    for o in opened:
        for step in set(o.group.steps) & set(choice):
            samples = o.samples[choice[step]]
            for stage, by_step in times.stages.items():
                found = (Sample(s.ms * scale, s.disturbed or not quiet) for s in by_step.get(step, ()))
                samples.setdefault(stage, []).extend(found)


def _of_interest(alive: Sequence[int], samples: Sequence[Samples], settings: ProfileSettings, *, sure: bool) -> list[int]:
    """Return the candidates that are worth more samples than they have had.

    What was only measured disturbed may be better than it seems, unless there is no time to find out (`sure`).
    """
    costs = {p: (_prepare_ms(samples[p]), min(_least(samples[p][stage]) for stage in _EXECUTING)) for p in alive}
    unsure = {p for p in alive if not all(_clean(samples[p][s]) for s in (*_PREPARING, *_EXECUTING) if samples[p].get(s))}

    def beaten(mine: Sequence[float], other: Sequence[float]) -> bool:
        """Tell whether `other` is clearly better in one stage, and gives up next to nothing for it in the other."""
        for clear, given in ((0, 1), (1, 0)):
            gain, loss = mine[clear] - other[clear], other[given] - mine[given]
            if other[clear] * settings.margin < mine[clear] and loss * settings.exchange < gain:
                return True
        return False

    return [
        p for p, mine in costs.items() if (p in unsure and not sure) or not any(beaten(mine, other) for other in costs.values())
    ]


def _least(samples: Sequence[Sample]) -> float:
    """Return the least undisturbed sample: one slow sample decides nothing."""
    return min(undisturbed(samples))


def _prepare_ms(samples: Mapping[str, Sequence[Sample]]) -> float:
    return float(sum(np.median(undisturbed(samples[stage])) for stage in _PREPARING if samples.get(stage)))


def work_ms(steps: Sequence[Sequence[Row]]) -> float:
    """Return the time to prepare and execute all steps on one core, ms, each with its candidate of the least sum.

    Args:
        steps: the rows of each.
    """

    def cost(row: Row) -> float:
        preparing = sum(np.median(row.samples_ms[stage]) for stage in _PREPARING if stage in row.samples_ms)
        return float(preparing + np.median(row.samples_ms["first:1"]))

    return sum(min(map(cost, rows)) for rows in steps)


def _rows(opened: Sequence[_Open]) -> list[Row]:
    now = time.time()
    return [_row(o.group, position, samples, now) for o in opened for position, samples in enumerate(o.samples)]


def _row(group: Group, position: int, samples: Samples, now: float) -> Row:
    sizes = group.sizes[position]
    times = {stage: undisturbed(found) for stage, found in samples.items() if found}
    if noise := sum(not _clean(found) for found in samples.values() if found) / max(len(times), 1):
        times[NOISE] = (noise,)
    kept = {stage: tuple(np.asarray(found, np.float32).tolist()) for stage, found in sorted(times.items())}
    name = group.implementations[position].name
    return Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, kept, now)
