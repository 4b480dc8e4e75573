"""The best of a few streaming plans for a budget: each around places of tensors, weights where memory is free earliest.

A skyline says of every address which step uses it last so far. In order of execution, the tensors
that begin with a step raise it until their end; then the step's weights take a window whose highest
point is lowest, so that their load waits for the earliest step. Loads begin in order, so anything
not above what earlier loads wait for is as good; among those the tightest gap is taken.

What loads wait for only rises, so the gaps at its height are kept: when nothing fits, the lowest
stretches beside them become free, one height after the other, each once: O((steps + tensors) (log
steps + gaps)), in plain Python, in hundredths of a second.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout import Ints
from edgeplan.planning.memory.workload import (
    SHARES,
    Placement,
    Reader,
    Timeline,
    Workload,
    isolated_ms,
    kept_candidates,
    period_ms,
    placement,
    simulated,
)

#: Ways to choose among gaps that are free equally early.
TIGHTEST, LOWEST, HIGHEST = 0, 1, 2
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
    """A plan and what is known about it; its budget is in bytes.

    What is predicted is the latency of an isolated inference, or the mean time between inferences; no plan for these steps,
    budget and bandwidth is faster than the bound. `loaded_bytes` are read during an inference of that mode.
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
    """No plan of that mode is faster. Infinite if the budget (bytes) is too small; `stride`: see `period_ms`."""
    if mode is Mode.isolated:
        return isolated_ms(workload, reader, budget)
    return period_ms(workload, reader, budget, stride)


def all_kept(workload: Workload, offsets: Ints, first: Sequence[int] = ()) -> Placement:
    """Return a placement that reads nothing again: all weights have places of their own, before a layout of the tensors."""
    stay, base = kept_below(workload, np.flatnonzero(workload.weight_bytes), first)
    weights = np.full(workload.steps, -1, dtype=np.int64)
    weights[list(stay)] = list(stay.values())
    return placement(workload, offsets + base, weights, np.full(workload.steps, -1, dtype=np.int64))


def enough_bytes(workload: Workload, offsets: Ints) -> int:
    """Return the bytes of arena that `all_kept` takes."""
    _, base = kept_below(workload, np.flatnonzero(workload.weight_bytes))
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
    """Return the best plan around some layouts of the tensors; None if weights find no place in any of them.

    Of plans as fast it is the one that reads least.

    The budget is in bytes. Of the layouts, addresses of the tensors, those worth trying come first: what is near to the bound
    ends the search. Other placements are held beside. What is planned `again` is done in hundredths of a second: the search
    ends farther from the bound, and tries less. Weights of the steps in `first` stay at a smaller budget, in their order: they
    are kept before others, and do not move.
    """
    bound = bound_ms(workload, reader, budget, mode, 1 + workload.steps // _FIRSTS_AGAIN if again else 1)
    near, shares = (_NEAR_AGAIN, _SHARES_AGAIN) if again else (NEAR, SHARES)
    made: list[PlannedMemory] = []
    for offsets in layouts:
        if int((offsets + workload.tensors.size).max(initial=0)) > budget:
            continue
        if enough_bytes(workload, offsets) <= budget:  # a bound, not a wish: no more of it is taken than there is to keep
            return _priced(workload, reader, budget, mode, bound, all_kept(workload, offsets, first))[0]
        for planned, frugal in _placements(workload, reader, budget, mode, bound, offsets, shares, first):
            made.append(planned)
            if frugal and made[-1].predicted_ms <= bound * (1 + near):
                return made[-1]
    made += (_priced(workload, reader, budget, mode, bound, placed)[0] for placed in others)
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

    With the weights that stay in that one first, then with none; where these are about as fast, with others, too. `offsets` are
    addresses of the tensors, `staying` the steps whose weights stay at a smaller budget, in their order.
    """
    isolated, budget, bound = known.mode is Mode.isolated, known.budget, known.lower_bound_ms
    stays = known.placement.stays
    first = [] if isolated or not stays.any() else [stays]
    for pinned in (*first, None):
        if (placed := placed_around(workload, offsets, budget, pinned, first=staying)) is None:
            continue
        made, timeline = _priced(workload, reader, budget, known.mode, bound, placed)
        yield made
        if isolated or pinned is not None or made.predicted_ms > _PROMISING * known.predicted_ms:
            continue
        for kept in kept_candidates(workload, budget, timeline, first=staying):
            if (placed := placed_around(workload, offsets, budget, kept, first=staying)) is not None:
                yield _priced(workload, reader, budget, known.mode, bound, placed)[0]


def _placements(
    workload: Workload, reader: Reader, budget: int, mode: Mode, bound: float,
    offsets: Ints, shares: Sequence[float], first: Sequence[int],
) -> Iterator[tuple[PlannedMemory, bool]]:  # fmt: skip
    """Yield plans, and whether those that come behind read more; the ones that keep most come first."""
    isolated = mode is Mode.isolated
    for rule in (TIGHTEST, LOWEST, HIGHEST) if isolated else (TIGHTEST,):
        placed = placed_around(workload, offsets, budget, rule=rule)
        if placed is None:
            return  # whether there is a window does not depend on the rule
        planned, timeline = _priced(workload, reader, budget, mode, bound, placed)
        yield planned, isolated
        for pinned in () if isolated else kept_candidates(workload, budget, timeline, shares, first):
            if (kept := placed_around(workload, offsets, budget, pinned, first=first)) is not None:
                yield _priced(workload, reader, budget, mode, bound, kept)[0], True


def _priced(
    workload: Workload, reader: Reader, budget: int, mode: Mode, bound: float, placed: Placement
) -> tuple[PlannedMemory, Timeline]:
    isolated = mode is Mode.isolated
    timeline = simulated(workload, reader, placed, 1 if isolated else REPEATS)
    predicted = timeline.latency_ms if isolated else timeline.period_ms
    loads = (placed.weight_offset >= 0) & ((placed.after >= 0) if isolated else ~placed.stays)
    if bound * (1 - _ROUNDING) <= predicted < bound:
        predicted = bound
    return PlannedMemory(placed, budget, mode, predicted, bound, int(workload.weight_bytes[loads].sum())), timeline


def placed_around(
    workload: Workload,
    tensor_offset: Ints,
    budget: int,
    pinned: npt.NDArray[np.bool_] | None = None,
    rule: int = TIGHTEST,
    first: Sequence[int] = (),
) -> Placement | None:
    """Find addresses for weights around the tensors; None if some weights find no window.

    Addresses of tensors are counted from where weights that stay end, those of the `pinned` steps. These lie at the lower end
    of memory, which does not move with the budget (bytes of all addresses), those of the steps in `first` before others, in its
    order: they stay at a smaller budget. The rule is `TIGHTEST`, `LOWEST` or `HIGHEST`.
    """
    tensors, n = workload.tensors, workload.steps
    pinned = np.zeros(n, dtype=np.bool_) if pinned is None else pinned & (workload.weight_bytes > 0)
    unit = workload.weight_alignment
    stay, base = kept_below(workload, np.flatnonzero(pinned), first)
    limit = budget - base
    if limit < int((tensor_offset + tensors.size).max(initial=0)):
        return None
    order = workload.by_begin
    rows = zip(tensors.lower[order].tolist(), tensors.upper[order].tolist(), tensors.size[order].tolist(), strict=True)
    tensor_rows = [(*row, low) for row, low in zip(rows, tensor_offset[order].tolist(), strict=True) if row[2]]
    skyline = _Skyline(limit, unit, rule)
    weights = np.where(pinned, 0, workload.weight_bytes).tolist()
    if (placed := _placed(skyline, weights, tensor_rows)) is None:
        return None
    offsets, waits = placed
    again = [skyline.highest(low, low + size) if wait < 0 <= low else -1 for low, size, wait in zip(offsets, weights, waits)]  # noqa: B905
    offset, after, last = (np.array(values, dtype=np.int64) for values in (offsets, waits, again))
    offset[offset >= 0] += base
    for k, at in stay.items():
        offset[k], after[k], last[k] = at, -1, k
    ends = np.where(offset >= 0, offset + workload.weight_bytes, 0)
    height = max(int(ends.max()), base + int((tensor_offset + tensors.size).max(initial=0)))
    return Placement(tensor_offset + base, offset, after, last, height)


def kept_below(workload: Workload, steps: Ints, first: Sequence[int] = ()) -> tuple[dict[int, int], int]:
    """Addresses of weights that stay, from the lower end of memory on, and where what is used again begins behind them.

    Those of the steps in `first` come first, in this order.
    """
    unit, size = workload.weight_alignment, workload.weight_bytes
    staying = set(steps.tolist())
    order = [k for k in first if k in staying]
    order += sorted(staying.difference(order))
    found, at = {}, 0
    for k in order:
        found[k] = at
        at += -(-int(size[k]) // unit) * unit
    whole = math.lcm(unit, *np.unique(workload.tensors.alignment).tolist())
    return found, -(-at // whole) * whole


def _placed(
    skyline: _Skyline, weights: Sequence[int], tensors: Sequence[tuple[int, int, int, int]]
) -> tuple[list[int], list[int]] | None:
    """Offset of each step's weights (bytes, 0: none), and the step that its load waits for; None if some find no window."""
    offset, after = [-1] * len(weights), [-1] * len(weights)
    tensor = 0
    for k, size in enumerate(weights):
        while tensor < len(tensors) and tensors[tensor][0] <= k:
            _, upper, length, low = tensors[tensor]
            skyline.raised(low, low + length, upper - 1)
            tensor += 1
        if size:
            while (low := skyline.window(size)) < 0:
                if not skyline.rise(k):
                    return None
            offset[k], after[k] = low, skyline.reached
            skyline.raised(low, low + size, k)
    return offset, after


class _Skyline:
    """A skyline knows, of addresses [0, size), which step uses each last, and gaps that no step after `reached` uses."""

    def __init__(self, size: int, unit: int, rule: int) -> None:
        self._unit, self._rule = unit, rule
        self.reached = -1
        self._begin, self._last = [0, size], [-1, 1 << 62]  # of stretches; one behind the end
        self._low, self._high = [0], [size]  # of gaps, by address
        self._levels: list[tuple[int, int, int]] = []  # a heap of stretches that were raised: level, begin, end

    def raised(self, low: int, high: int, level: int) -> None:
        """A step that is later than all that use these addresses so far is their last one now."""
        begin, last = self._begin, self._last
        first, stop = bisect_right(begin, low) - 1, bisect_left(begin, high)
        before, behind = last[first], last[stop - 1]
        starts, levels = [low], [level]
        if begin[first] < low:
            starts, levels = [begin[first], low], [before, level]
        if begin[stop] > high:
            starts.append(high)
            levels.append(behind)
        begin[first:stop], last[first:stop] = starts, levels
        heappush(self._levels, (level, low, high))
        lows, highs = self._low, self._high
        first, stop = bisect_right(highs, low), bisect_left(lows, high)
        if first < stop:
            starts, ends = [], []
            if lows[first] < low:
                starts, ends = [lows[first]], [low]
            if highs[stop - 1] > high:
                starts.append(high)
                ends.append(highs[stop - 1])
            lows[first:stop], highs[first:stop] = starts, ends

    def window(self, size: int) -> int:
        """Where so many bytes go among the gaps; -1 if they fit in none."""
        unit, found, tightest = self._unit, -1, 1 << 62
        for low, high in zip(self._low, self._high, strict=True):
            left = high + -low // unit * unit - size
            if left < 0:
                continue
            if self._rule == LOWEST:
                return -(-low // unit) * unit
            if self._rule == HIGHEST:
                found = (high - size) // unit * unit
            elif left < tightest:
                found, tightest = -(-low // unit) * unit, left
        return found

    def rise(self, step: int) -> bool:
        """Wait for the next step that frees memory; whether there is one before a step."""
        levels = self._levels
        if not levels or levels[0][0] >= step:
            return False
        self.reached = max(self.reached, levels[0][0])
        while levels and levels[0][0] <= self.reached:
            _, low, high = heappop(levels)
            at = bisect_left(self._begin, low)
            while self._begin[at] < high:  # parts of it may have been raised since
                if self._last[at] <= self.reached:
                    self._free(self._begin[at], min(self._begin[at + 1], high))
                at += 1
        return True

    def _free(self, low: int, high: int) -> None:
        lows, highs = self._low, self._high
        first, stop = bisect_left(highs, low), bisect_right(lows, high)
        if first < stop:
            low, high = min(low, lows[first]), max(high, highs[stop - 1])
        lows[first:stop], highs[first:stop] = [low], [high]

    def highest(self, low: int, high: int) -> int:
        """Return the last step that uses any of these addresses."""
        first, stop = bisect_right(self._begin, low) - 1, bisect_left(self._begin, high)
        return max(self._last[first:stop])
