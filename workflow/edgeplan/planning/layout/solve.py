"""Lays whole problems out: within a capacity, or as low as can be."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import BufferLayout, Buffers, Ints, Verdict, max_live
from edgeplan.planning.layout.parts import LayoutPart, parts
from edgeplan.planning.layout.search import Clock, PartSearch

_SHARE = 0.25  # of the time left, for the first try at a capacity
_MOST_BUFFERS = 200_000  # beyond them greedy layouts are all there is time for
_HALVINGS = 5  # of the distance between bound and height


def solve(
    all_of: Buffers, capacity: int | None = None, timeout_s: float = 60.0, clock: Clock = time.perf_counter
) -> BufferLayout:
    """Find addresses for buffers within a capacity, or the lowest layout.

    Args:
        all_of: the buffers.
        capacity: no buffer may end above it; None for the lowest layout.
        timeout_s: time for searching; compiling, once on a machine, comes on top.
        clock: seconds, for the time that is spent.

    Returns:
        Within a capacity, a layout or none, and whether that is proven; without one, the lowest
        layout found and a bound.
    """
    load()
    started = clock()
    deadline = started + timeout_s
    bound = max_live(all_of)

    def layout(verdict: Verdict, offsets: Ints | None) -> BufferLayout:
        height = None if offsets is None else int((offsets + all_of.size).max(initial=0))
        return BufferLayout(verdict, offsets, height, bound, capacity, clock() - started)

    if capacity is not None and bound > capacity:
        return layout(Verdict.infeasible, None)
    # Many problems need no more than this, and all at once is much faster than part by part.
    enough = bound if capacity is None else capacity
    quick = _greedily(all_of, enough, deadline, clock)
    if (quick + all_of.size).max(initial=0) <= enough:
        return layout(Verdict.fits, quick)
    if len(all_of) > _MOST_BUFFERS:
        return layout(Verdict.fits, quick) if capacity is None else layout(Verdict.unknown, None)

    found, offsets = parts(all_of)
    floor = int((offsets + all_of.size)[offsets >= 0].max(initial=0))  # of buffers that have their place already
    searches = [PartSearch(part, all_of.subset(part.index)) for part in found]
    bound = max([floor, *(part.lower_bound for part in found)])
    if capacity is not None and bound > capacity:
        return layout(Verdict.infeasible, None)
    for search in searches:
        search.start(deadline, clock)
    if capacity is None:
        _lowest(searches, floor, deadline, clock)
    verdict = Verdict.fits if capacity is None else _within(searches, capacity, deadline, clock)
    bound = max([floor, *(search.lower_bound for search in searches)])
    if verdict is not Verdict.fits:
        return layout(verdict, None)
    for search in searches:
        offsets[search.part.index] = search.best
    return layout(verdict, offsets)


@cache
def load() -> None:
    """Run everything once, so that no search pays for compiling or loading."""
    tiny = Buffers(
        *(np.array(values, dtype=np.int64) for values in ([0, 1, 0, 3, 2], [2, 4, 3, 5, 5], [3, 2, 1, 3, 2], [1] * 5))
    )
    order = np.argsort(tiny.lower, kind="stable")
    greedy.sweep(tiny, order, len(order) ** 2)
    greedy.stack(tiny)
    attempt = PartSearch(LayoutPart(order, 0, 0, 1), tiny)
    attempt.start(np.inf)
    attempt.within(1, np.inf)


def _greedily(all_of: Buffers, enough: int, deadline: float, clock: Clock) -> Ints:
    """Return the lowest of a few greedy layouts, or the first that is low enough."""
    offsets = np.zeros(len(all_of), dtype=np.int64)
    shown = np.flatnonzero(all_of.size)
    if not len(shown):
        return offsets
    search = PartSearch(LayoutPart(shown, 0, enough, 1), all_of.subset(shown))
    search.start(deadline, clock)
    offsets[shown] = search.best
    return offsets


def _within(searches: list[PartSearch], capacity: int, deadline: float, clock: Clock) -> Verdict:
    """Search small parts first; a part that takes longer than its share waits until the others are done."""
    waiting = sorted(searches, key=lambda search: len(search.buffers))
    while waiting:
        unknown = []
        for k, search in enumerate(waiting):
            now = clock()
            verdict = search.within(capacity, now + max(deadline - now, 0.0) / (len(waiting) - k), clock)
            if verdict is Verdict.infeasible:
                return verdict
            if verdict is Verdict.unknown:
                unknown.append(search)
        if unknown and (clock() >= deadline or not any(search.exact for search in unknown)):
            return Verdict.unknown
        waiting = unknown
    return Verdict.fits


def _lowest(searches: list[PartSearch], floor: int, deadline: float, clock: Clock) -> None:
    """Lower the highest part until it is proven that nothing is lower, or the time is over.

    The bound is tried first, since it is often reached; then capacities half way from there to the
    height that is known, and so on; then the same again, with more time.
    """
    share, halvings = _SHARE, 0
    while searches and clock() < deadline:
        bound = max([floor, *(search.lower_bound for search in searches)])
        search = max(searches, key=lambda s: s.height)
        if not search.exact or search.height <= bound:
            return
        unit, base = search.part.unit, search.part.base
        target = search.height - ((search.height - bound) >> halvings)
        target = base + (min(target, search.height - unit) - base) // unit * unit
        now = clock()
        verdict = search.within(max(target, search.lower_bound), now + share * (deadline - now), clock)
        if verdict is Verdict.unknown:
            halvings += 1
            if halvings > _HALVINGS or search.height - target <= unit:
                share, halvings = min(2 * share, 1.0), 0
