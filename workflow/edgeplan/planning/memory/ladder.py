"""Plans of one program for a ladder of budgets, made beforehand: a change of the budget takes the largest that fits.

Budgets lie closer where a little more memory saves more time. What stays in memory at one of them stays
at the same addresses at all larger ones, so that a change reads only what is new.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory.quick import NEAR, Mode, PlannedMemory, best, enough_bytes
from edgeplan.planning.memory.search import improved
from edgeplan.planning.memory.workload import Reader, Workload

#: Budgets of a ladder.
STEPS = 24
_MOVING = 1.01  # a plan that keeps what a smaller one keeps may be so much slower than another
_NEAREST = 1.01  # budgets that are no nearer to each other than this
_WIDEST = 1.25  # budgets that are farther from each other have one between them, however alike their plans are in time
_SHORTEST_MS = 1e-6  # of an inference
_WORK, _MOST_TRIES = 30_000, 60  # of the search for layouts, for each budget: see `search.WORK`


def budgets(
    workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], least: int, most: int, count: int = STEPS
) -> list[int]:
    """Budgets from the least to the most (bytes), ascending: none far from each other, then where plans differ most.

    Args:
        workload: the steps.
        reader: what weights are read with.
        mode: which inferences.
        layouts: of the tensors.
        least: the smallest of them.
        most: the largest of them.
        count: how many budgets.
    """
    times = {budget: _predicted(workload, reader, mode, layouts, budget) for budget in sorted({least, max(least, most)})}
    while len(times) < count:
        ordered = sorted(times)
        wide = [(low, high) for low, high in pairwise(ordered) if high > low * _NEAREST]
        if not wide:
            break
        low, high = max(wide, key=lambda pair: pair[1] / pair[0])
        if high < low * _WIDEST:
            low, high = max(wide, key=lambda pair: times[pair[0]] / max(times[pair[1]], _SHORTEST_MS))
        between = math.isqrt(low * high)
        times[between] = _predicted(workload, reader, mode, layouts, between)
    return sorted(times)


def _predicted(workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], budget: int) -> float:
    """The milliseconds of a plan made fast; very many where none is found."""
    made = best(workload, reader, budget, mode, layouts, again=True)
    return made.predicted_ms if made is not None else 1e9


def plans(
    workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], wanted: Sequence[int], work: int = _WORK
) -> Iterator[PlannedMemory]:
    """Plan for each budget, from the smallest on; those that do not fit are left out.

    Args:
        workload: the steps.
        reader: what weights are read with.
        mode: which inferences.
        layouts: of the tensors, to begin with.
        wanted: budgets, ascending.
        work: of the search for better layouts, for each budget.
    """
    known: list[Ints] = list(layouts)
    before: PlannedMemory | None = None
    fastest_ms = math.inf
    for budget in wanted:
        staying = before.staying if before is not None else []
        made = beside(workload, reader, mode, known, budget, staying, min(work, _MOST_TRIES * workload.steps))
        if made is None:
            continue
        as_fast = made.predicted_ms <= (1 + NEAR) * fastest_ms
        if before is not None and made.predicted_ms >= fastest_ms and not (as_fast and made.loaded_bytes < before.loaded_bytes):
            continue  # a smaller budget is as good, and nothing moves
        yield made
        fastest_ms = min(fastest_ms, made.predicted_ms)
        before = made
        known = [*layouts, from_zero(made.placement.tensor_offset)]


def beside(
    workload: Workload, reader: Reader, mode: Mode, layouts: Sequence[Ints], budget: int, staying: Sequence[int], work: int
) -> PlannedMemory | None:
    """Plan for a budget that a smaller one was left for: what stayed there stays where it is, unless that costs too much.

    Args:
        workload: the steps.
        reader: what weights are read with.
        mode: which inferences.
        layouts: of the tensors, to begin with.
        budget: bytes.
        staying: steps whose weights stay at the smaller budget, in their order.
        work: of the search for better layouts.

    Returns:
        None if it does not fit.
    """
    made, free = (best(workload, reader, budget, mode, layouts, first=first) for first in (staying, []))
    if made is None or free is None:
        return None
    if made.predicted_ms > _MOVING * free.predicted_ms:  # to keep what stays would cost more than moving it once
        made, staying = free, []
    return improved(workload, reader, made, work, first=staying)


def from_zero(offsets: Ints) -> Ints:
    """Return a layout of tensors that begins at address 0, with the same distances."""
    return offsets - int(offsets.min(initial=int(offsets.max(initial=0))))


def smallest(workload: Workload, layouts: Sequence[Ints]) -> int:
    """The least budget with all weights in memory by the best of some layouts."""
    return min(enough_bytes(workload, offsets) for offsets in layouts)
