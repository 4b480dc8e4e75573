"""The best of a few skylines for a budget, its time, and the bound that it is held to.

Plain Python alone, in hundredths of a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory import bounds, residents, simulate, skyline
from edgeplan.planning.memory.workload import Placement, Reader, Workload, placement

#: Inferences that follow each other when a period is planned; the first ones begin with memory filled.
REPEATS = 6
_ROUNDING = 1e-9
NEAR = 1e-3  # a plan this near to the bound is not improved further
_NEAR_AGAIN, _SHARES_AGAIN = 0.01, (0.95, 0.75, 0.4)
_FIRSTS_AGAIN = 16  # steps that the bound is counted from then
_PROMISING = 1.1  # a layout as slow as that without weights that stay gets other sets of them


class Mode(StrEnum):
    """A mode says which inferences a plan is made for."""

    isolated = "isolated"  # one inference, memory filled while nothing runs
    back_to_back = "back-to-back"


@dataclass(frozen=True)
class PlannedMemory:
    """A plan and what is known about it.

    Attributes:
        placement: where and when.
        budget: bytes.
        mode: what it is planned for.
        predicted_ms: latency of an isolated inference, or the mean time between inferences.
        lower_bound_ms: no plan for these steps, budget and bandwidth is faster.
        loaded_bytes: read during an inference of that mode.
    """

    placement: Placement
    budget: int
    mode: Mode
    predicted_ms: float
    lower_bound_ms: float
    loaded_bytes: int

    @property
    def staying(self) -> list[int]:
        """Steps whose weights stay in memory, by their addresses."""
        placed = self.placement
        return sorted(np.flatnonzero(placed.stays).tolist(), key=placed.weight_offset.tolist().__getitem__)

    @property
    def gap(self) -> float:
        """Relative distance to the bound; 0 where both are."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def bound_ms(workload: Workload, reader: Reader, budget: int, mode: Mode, stride: int = 1) -> float:
    """No plan of that mode is faster. Infinite if the budget is too small.

    Args:
        workload: the steps.
        reader: what weights are read with.
        budget: bytes for tensors and weights.
        mode: which inferences.
        stride: see `bounds.period_ms`.
    """
    if mode is Mode.isolated:
        return bounds.isolated_ms(workload, reader, budget)
    return bounds.period_ms(workload, reader, budget, stride)


def all_kept(workload: Workload, offsets: Ints, first: Sequence[int] = ()) -> Placement:
    """Return a placement that reads nothing again: all weights have places of their own, before a layout of the tensors."""
    stay, base = skyline.kept(workload, np.flatnonzero(workload.weight_bytes), first)
    weights = np.full(workload.steps, -1, dtype=np.int64)
    weights[list(stay)] = list(stay.values())
    return placement(workload, offsets + base, weights, np.full(workload.steps, -1, dtype=np.int64))


def enough_bytes(workload: Workload, offsets: Ints) -> int:
    """Return the bytes of arena that `all_kept` takes."""
    _, base = skyline.kept(workload, np.flatnonzero(workload.weight_bytes))
    return base + int((offsets + workload.tensors.size).max(initial=0))


def best(
    workload: Workload,
    reader: Reader,
    budget: int,
    mode: Mode,
    layouts: Iterable[Ints],
    others: Iterable[Placement] = (),
    *,
    again: bool = False,
    first: Sequence[int] = (),
) -> PlannedMemory | None:
    """Return the best plan around some layouts of the tensors; of plans as fast the one that reads least.

    Args:
        workload: the steps.
        reader: what weights are read with.
        budget: bytes for tensors and weights.
        mode: what is planned for.
        layouts: addresses of the tensors, those worth trying first; what is near to the bound ends the search.
        others: placements to hold beside.
        again: be done in hundredths of a second: the search ends farther from the bound, and tries less.
        first: steps whose weights stay at a smaller budget, in their order: they are kept before others, and do not move.

    Returns:
        None if weights find no place in any of them.
    """
    bound = bound_ms(workload, reader, budget, mode, 1 + workload.steps // _FIRSTS_AGAIN if again else 1)
    near, shares = (_NEAR_AGAIN, _SHARES_AGAIN) if again else (NEAR, residents.SHARES)
    made: list[PlannedMemory] = []
    for offsets in layouts:
        if int((offsets + workload.tensors.size).max(initial=0)) > budget:
            continue
        if enough_bytes(workload, offsets) <= budget:  # a bound, not a wish: no more of it is taken than there is to keep
            placed = all_kept(workload, offsets, first)
            timeline = simulate.run(workload, reader, placed, 1 if mode is Mode.isolated else REPEATS)
            return _priced(workload, budget, mode, bound, placed, timeline)
        for placed, timeline, frugal in _placements(workload, reader, budget, mode, offsets, shares, first):
            made.append(_priced(workload, budget, mode, bound, placed, timeline))
            if frugal and made[-1].predicted_ms <= bound * (1 + near):
                return made[-1]
    for placed in others:
        timeline = simulate.run(workload, reader, placed, 1 if mode is Mode.isolated else REPEATS)
        made.append(_priced(workload, budget, mode, bound, placed, timeline))
    if not made:
        return None
    fastest = min(planned.predicted_ms for planned in made)
    if mode is Mode.isolated:
        return min(made, key=lambda planned: planned.predicted_ms)
    # What is read again in every inference costs energy, too.
    as_fast = [planned for planned in made if planned.predicted_ms <= fastest * (1 + NEAR)]
    return min(as_fast, key=lambda planned: (planned.loaded_bytes, planned.predicted_ms))


def around(
    workload: Workload, reader: Reader, known: PlannedMemory, offsets: Ints, staying: Sequence[int] = ()
) -> Iterator[PlannedMemory]:
    """Yield plans around another layout of the tensors, for the budget and mode of one that is known.

    With the weights that stay in that one first, then with none; where these are about as fast, with others, too.

    Args:
        workload: the steps.
        reader: what weights are read with.
        known: the plan.
        offsets: addresses of the tensors.
        staying: steps whose weights stay at a smaller budget, in their order.
    """
    isolated = known.mode is Mode.isolated
    repeats = 1 if isolated else REPEATS
    stays = known.placement.stays
    first = [] if isolated or not stays.any() else [stays]
    for pinned in (*first, None):
        if (placed := skyline.place(workload, offsets, known.budget, pinned, first=staying)) is None:
            continue
        timeline = simulate.run(workload, reader, placed, repeats)
        made = _priced(workload, known.budget, known.mode, known.lower_bound_ms, placed, timeline)
        yield made
        if isolated or pinned is not None or made.predicted_ms > _PROMISING * known.predicted_ms:
            continue
        for kept in residents.candidates(workload, known.budget, timeline, first=staying):
            if (placed := skyline.place(workload, offsets, known.budget, kept, first=staying)) is not None:
                timeline = simulate.run(workload, reader, placed, repeats)
                yield _priced(workload, known.budget, known.mode, known.lower_bound_ms, placed, timeline)


def _placements(
    workload: Workload,
    reader: Reader,
    budget: int,
    mode: Mode,
    offsets: Ints,
    shares: Sequence[float],
    first: Sequence[int],
) -> Iterator[tuple[Placement, simulate.Timeline, bool]]:
    """Yield placements as they run, and whether those that come behind read more; the ones that keep most come first."""
    rules = (skyline.TIGHTEST, skyline.LOWEST, skyline.HIGHEST) if mode is Mode.isolated else (skyline.TIGHTEST,)
    repeats = 1 if mode is Mode.isolated else REPEATS
    for rule in rules:
        placed = skyline.place(workload, offsets, budget, rule=rule)
        if placed is None:
            return  # whether there is a window does not depend on the rule
        timeline = simulate.run(workload, reader, placed, repeats)
        yield placed, timeline, mode is Mode.isolated
        if mode is Mode.isolated:
            continue
        for pinned in residents.candidates(workload, budget, timeline, shares, first):
            if (kept := skyline.place(workload, offsets, budget, pinned, first=first)) is not None:
                yield kept, simulate.run(workload, reader, kept, repeats), True


def _priced(
    workload: Workload, budget: int, mode: Mode, bound: float, placed: Placement, timeline: simulate.Timeline
) -> PlannedMemory:
    loads = placed.weight_offset >= 0
    if mode is Mode.isolated:
        predicted = timeline.latency_ms
        loads &= placed.after >= 0
    else:
        predicted = timeline.period_ms
        loads &= ~placed.stays
    if bound * (1 - _ROUNDING) <= predicted < bound:
        predicted = bound
    return PlannedMemory(placed, budget, mode, predicted, bound, int(workload.weight_bytes[loads].sum()))
