"""Layouts of whole problems: within a capacity, or as low as can be, by greedy layouts and CP-SAT."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import BufferLayout, Buffers, Ints, Verdict, max_live
from edgeplan.planning.layout.parts import LayoutPart, graph, pair_count, parts

_MOST_BUFFERS = 200_000  # beyond them greedy layouts are all there is time for
#: Beyond these a part is laid out by greedy heuristics alone.
_MOST_SEARCHED, _PAIRS = 5000, 25_000_000
_LARGEST_SUM = 1 << 60  # that CP-SAT holds, of heights over lifetimes
_STEPS_PER_S = 300_000_000  # of a sweep, at the least
_SHARE = 0.25  # of the time left, for a layout at the bound
_WORKERS = 8  # searches of CP-SAT that differ, in turns where there are fewer processors


@dataclass
class _Searched:
    """A part with the offsets of its lowest layout so far, base included, and its bound."""

    part: LayoutPart
    buffers: Buffers
    best: Ints

    def __post_init__(self) -> None:
        self.lower_bound = self.part.lower_bound

    @property
    def height(self) -> int:
        return int((self.best + self.buffers.size).max())


def solve(all_of: Buffers, capacity: int | None = None, timeout_s: float = 60.0) -> BufferLayout:
    """Find addresses for buffers within a capacity, or the lowest layout.

    Args:
        all_of: the buffers.
        capacity: no buffer may end above it; None for the lowest layout.
        timeout_s: time for searching; compiling, once on a machine, comes on top.

    Returns:
        Within a capacity, a layout or none, and whether that is proven; without one, the lowest
        layout found and a bound.
    """
    greedy.load()
    started = time.perf_counter()
    deadline = started + timeout_s
    bound = max_live(all_of)

    def layout(verdict: Verdict, offsets: Ints | None) -> BufferLayout:
        height = None if offsets is None else int((offsets + all_of.size).max(initial=0))
        return BufferLayout(verdict, offsets, height, bound, capacity, time.perf_counter() - started)

    if capacity is not None and bound > capacity:
        return layout(Verdict.infeasible, None)
    # Many problems need no more than this, and all at once is much faster than part by part.
    enough = bound if capacity is None else capacity
    quick, shown = np.zeros(len(all_of), dtype=np.int64), np.flatnonzero(all_of.size)
    if len(shown):
        quick[shown] = _greedily(all_of.subset(shown), enough, deadline)
    if (quick + all_of.size).max(initial=0) <= enough:
        return layout(Verdict.fits, quick)
    if len(all_of) > _MOST_BUFFERS:
        return layout(Verdict.fits, quick) if capacity is None else layout(Verdict.unknown, None)

    found, offsets = parts(all_of)
    floor = int((offsets + all_of.size)[offsets >= 0].max(initial=0))  # of buffers that have their place already
    searched = []
    for part in found:
        own = all_of.subset(part.index)
        searched.append(_Searched(part, own, part.base + _greedily(own, part.lower_bound - part.base, deadline)))
    _decide(searched, capacity, floor, deadline)
    bound = max([floor, *(one.lower_bound for one in searched)])
    for one in searched:
        offsets[one.part.index] = one.best
    if capacity is None or (offsets + all_of.size).max() <= capacity:
        return layout(Verdict.fits, offsets)
    return layout(Verdict.infeasible if bound > capacity else Verdict.unknown, None)


def _decide(searched: list[_Searched], capacity: int | None, floor: int, deadline: float) -> None:
    """Search part after part: the highest ones first, of which one decides, or within a capacity the smallest."""
    enough = max([floor, *(one.lower_bound for one in searched)]) if capacity is None else capacity
    searched.sort(key=lambda one: -one.height if capacity is None else len(one.buffers))
    for k, one in enumerate(searched):
        left = deadline - time.perf_counter()
        if capacity is None and one.height > enough:
            _search(one, enough, enough, _SHARE * left)  # the bound is often reached, and soon
            if one.height > enough:
                _search(one, enough, one.height - 1, deadline - time.perf_counter())
            enough = max(enough, one.height)
        elif capacity is not None and one.lower_bound <= capacity < one.height:
            _search(one, capacity, capacity, left / (len(searched) - k))
        if capacity is not None and one.lower_bound > capacity:
            return


def _greedily(own: Buffers, enough: int, deadline: float) -> Ints:
    """The lowest of a few greedy layouts, or the first that is low enough."""
    tried = []
    if pair_count(own) > _PAIRS:
        tried.append(greedy.stack(own))
        limit = int(max(deadline - time.perf_counter(), 0.1) * _STEPS_PER_S)
        if (swept := greedy.sweep(own, np.argsort(own.lower, kind="stable"), limit)) is not None:
            tried.append(swept)
    else:
        network = graph(own)
        for order in greedy.orders(own).values():
            tried.append(greedy.first_fit(network, own, order))
            if (tried[-1] + own.size).max() <= enough or time.perf_counter() > deadline:
                break
    return min(tried, key=lambda offsets: int((offsets + own.size).max()))


def _search(one: _Searched, enough: int, most: int, seconds: float) -> None:
    """Find a layout of a part that is no higher than `most`, the lowest if above `enough`, or raise the part's bound."""
    from ortools.sat.python import cp_model  # noqa: PLC0415  most layouts need none

    own, unit, base = one.buffers, one.part.unit, one.part.base
    enough, most = (enough - base) // unit, (most - base) // unit
    first, last = (np.searchsorted(np.unique(own.lower), ends) for ends in (own.lower, own.upper))
    if seconds <= 0 or len(own) > _MOST_SEARCHED or most * int((last - first).sum()) > _LARGEST_SUM:
        return
    model = cp_model.CpModel()
    height = model.new_int_var(enough, most, "height")
    lives = [model.new_fixed_size_interval_var(int(a), int(b - a), "") for a, b in zip(first, last, strict=True)]
    sizes, steps = (own.size // unit).tolist(), np.maximum(own.alignment // unit, 1).tolist()
    places, pieces = [], []
    for size, step, at in zip(sizes, steps, (one.best - base).tolist(), strict=True):
        place = model.new_int_var(0, (most - size) // step, "")
        model.add_hint(place, min(at // unit, most - size) // step)
        model.add(place * step + size <= height)
        pieces.append(model.new_fixed_size_interval_var(place * step, size, ""))
        places.append(place)
    model.add_no_overlap_2d(lives, pieces)
    model.add_cumulative(lives, sizes, height)
    if most > enough:
        model.minimize(height)
    solver = cp_model.CpSolver()
    settings: Any = solver.parameters
    settings.max_time_in_seconds, settings.num_workers, settings.random_seed = seconds, _WORKERS, 0
    status = solver.solve(model)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        one.best = base + np.array([solver.value(place) * step * unit for place, step in zip(places, steps, strict=True)])
    if status == cp_model.INFEASIBLE:
        one.lower_bound = base + (most + 1) * unit
    elif most > enough and (proven := math.ceil(solver.best_objective_bound)) > enough:
        one.lower_bound = max(one.lower_bound, base + proven * unit)
