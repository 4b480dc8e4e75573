"""Measuring the candidates of a model in rounds, by the rules of measuring (design, section 3).

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

from edgeplan.cold.clock import Clock
from edgeplan.cold.interference import LIMIT
from edgeplan.cold.profiling.memory import waited_ms
from edgeplan.cold.profiling.rounds import Rig, Round, Times
from edgeplan.cold.profiling.settings import ProfileSettings
from edgeplan.cold.profiling.store import Row
from edgeplan.cold.profiling.subjects import Group
from edgeplan.errors import NoiseError

log = logging.getLogger(__name__)
_REPEAT_BLOCKS = 2  # blocks in which the second creation of equal steps is timed
Samples = dict[str, list[float]]


@dataclass
class _Open:
    """A group being measured: the candidates still of interest, and the samples of all."""

    group: Group
    alive: list[int]
    samples: list[Samples] = field(default_factory=list)


def measure(
    rig: Rig, groups: Collection[Group], settings: ProfileSettings, clock: Clock, advance: Callable[[int], None]
) -> list[Row]:
    """Measure groups of steps; the other steps of the model run along.

    Args:
        rig: the model.
        groups: to be measured, at least one.
        settings: how.
        clock: for normalisation.
        advance: told the share of the work just done, in thousandths.

    Raises:
        NoiseError: too many rounds stayed disturbed.
    """
    opened = [_Open(g, list(range(len(g.sizes))), [{} for _ in g.sizes]) for g in groups]
    widths = rig.widths
    told = done = noisy = 0
    for block in range(settings.blocks):
        rounds = max(-(-len(o.alive) // len(o.group.steps)) for o in opened)
        for number in range(rounds):
            choice = _choices(opened, number)
            again = {s for o in opened for s in o.group.steps} if block < _REPEAT_BLOCKS else set()
            times, scale, quiet = quiet_round(
                rig, Round(choice, widths[block % len(widths)], frozenset(again)), settings, clock
            )
            done, noisy = done + 1, noisy + (not quiet)
            _collect(opened, choice, times, scale)
            share = int(1000 * (block + (number + 1) / rounds) / settings.blocks)
            advance(share - told)
            told = share
        if block == 0:
            for o in opened:
                o.alive = _of_interest(o.samples, settings)
    if noisy > settings.max_noisy_share * done:
        raise NoiseError(
            f"the machine is too busy to profile a model: {noisy} of {done} rounds stayed disturbed",
            where=f"home layout {rig.subject.program.home}",
            next_step="stop other work and run the same command again, or keep such figures with --accept-noise",
        )
    now = time.time()
    return [_row(o.group, position, samples, now) for o in opened for position, samples in enumerate(o.samples)]


def _choices(opened: Sequence[_Open], number: int) -> dict[int, int]:
    """The candidates of one round, in execution order: equal steps take the next ones of theirs, until all had their turn."""
    choice = {}
    for o in opened:
        for place, step in enumerate(o.group.steps, number * len(o.group.steps)):
            if place < len(o.alive):
                choice[step] = o.alive[place]
    return dict(sorted(choice.items()))


def quiet_round(rig: Rig, what: Round, settings: ProfileSettings, clock: Clock) -> tuple[Times, float, bool]:
    """A round during which the machine stayed as it was, if there was one: its times, their scale, and whether it was quiet."""
    for attempt in range(settings.retries + 1):
        beside = clock.watch.wait()
        before, waited, start = clock.now(), waited_ms(), time.perf_counter()
        times = rig.run(what, settings.warm_runs)
        share = (waited_ms() - waited) / ((time.perf_counter() - start) * 1e3)
        after, beside = clock.now(), max(beside, clock.watch.now())
        ends = clock.slowness(before), clock.slowness(after)
        drift = max(ends) / min(ends) - 1
        quiet = drift <= settings.max_drift and share <= settings.max_waiting and beside <= LIMIT
        if quiet:
            break
        drifted = f"the machine's speed moved by {100 * drift:.0f} %, threads waited {100 * share:.0f} % of the time"
        log.info("round rejected: %s, processors took %.2f times as long (attempt %d)", drifted, beside, attempt + 1)
    return times, 1 / clock.slowness(before, after), quiet


def _collect(opened: Sequence[_Open], choice: Mapping[int, int], times: Times, scale: float) -> None:
    for o in opened:
        for step in set(o.group.steps) & set(choice):
            samples = o.samples[choice[step]]
            for stage, by_step in times.stages.items():
                samples.setdefault(stage, []).extend(t * scale for t in by_step.get(step, ()))


def _of_interest(samples: Sequence[Samples], settings: ProfileSettings) -> list[int]:
    """Candidates worth more than the quick look."""
    costs = [(_prepare_ms(s), min(*s["first:1"], *s["warm:1"])) for s in samples]  # one slow sample decides nothing

    def beaten(mine: Sequence[float], other: Sequence[float]) -> bool:
        """Whether `other` is clearly better in one stage, and gives up next to nothing for it in the other."""
        for clear, given in ((0, 1), (1, 0)):
            gain, loss = mine[clear] - other[clear], other[given] - mine[given]
            if other[clear] * settings.margin < mine[clear] and loss * settings.exchange < gain:
                return True
        return False

    return [position for position, mine in enumerate(costs) if not any(beaten(mine, other) for other in costs)]


def _prepare_ms(samples: Mapping[str, Sequence[float]]) -> float:
    stages = ("read:big", "create:big", "transform:big")
    return float(sum(np.median(samples[stage]) for stage in stages if samples.get(stage)))


def _row(group: Group, position: int, samples: Samples, now: float) -> Row:
    sizes = group.sizes[position]
    kept = {stage: tuple(np.asarray(times, np.float32).tolist()) for stage, times in sorted(samples.items()) if times}
    name = group.implementations[position].name
    return Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, kept, now)
