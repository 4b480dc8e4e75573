"""Searches for a layout of one part: exact searches that differ in how they break ties, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from edgeplan.planning.layout import canonical, greedy
from edgeplan.planning.layout.buffers import Buffers, Ints, Verdict
from edgeplan.planning.layout.parts import InterferenceGraph, LayoutPart, graph, pair_count

#: Beyond these a part is laid out by greedy heuristics alone.
_PAIRS = 25_000_000
_ROOM = 20_000_000  # entries of the trail and the pool of a search
_MOST_BUFFERS = 20_000
_STEP = 1000  # decisions between two looks at the clock
_STEPS_PER_S = 300_000_000  # of a sweep, at the least
_SEARCHES = 24  # at the same time, if there is memory for them
_SEARCH_BYTES = 1 << 30
_NEVER = 2**62  # the height without a layout
_SPREAD = 0.35  # of the keys of random orders
Clock = Callable[[], float]


@dataclass(eq=False)
class Attempt:
    """An attempt searches in its own order: its buffers are `order`, permuted."""

    order: Ints
    state: canonical.State

    @property
    def nodes(self) -> int:
        """Return the number of decisions so far."""
        return int(self.state.registers[canonical.NODES])

    def offsets(self) -> Ints:
        """Return the offset of each buffer in the layout found (n,)."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = self.state.offset
        return found


@dataclass
class PartSearch:
    """A search of one part keeps its best layout and its bound.

    Attributes:
        part: the part: which buffers, from which address on.
        buffers: its buffers.
        best: offsets of the lowest layout known, base included.
        height: height of the best layout so far.
        lower_bound: proven, base included.
    """

    part: LayoutPart
    buffers: Buffers
    best: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    height: int = _NEVER
    lower_bound: int = 0
    _graph: InterferenceGraph | None = None
    _attempts: list[Attempt] = field(default_factory=list)
    _fresh: Iterator[Ints] = field(default_factory=lambda: iter(()))
    _capacity: int = -1
    _budget: int = _STEP

    @property
    def exact(self) -> bool:
        """Tell whether the part is small enough for an exact search."""
        return self._graph is not None and len(self.buffers) <= _MOST_BUFFERS

    def start(self, deadline: float, clock: Clock = time.perf_counter) -> None:
        """Lay the part out greedily."""
        self.lower_bound = self.part.lower_bound
        if pair_count(self.buffers) > _PAIRS:
            order = np.argsort(self.buffers.lower, kind="stable")
            limit = int(max(deadline - clock(), 0.1) * _STEPS_PER_S)
            self._keep(greedy.stack(self.buffers))
            if (found := greedy.sweep(self.buffers, order, limit)) is not None:
                self._keep(found)
            return
        self._graph = graph(self.buffers)
        for order in greedy.orders(self.buffers).values():
            self._keep(greedy.first_fit(self._graph, self.buffers, order))
            if self.height <= self.lower_bound or clock() > deadline:
                return

    def within(self, capacity: int, deadline: float, clock: Clock = time.perf_counter) -> Verdict:
        """Search for a layout that is no higher than `capacity`, for as long as there is time."""
        if self.height <= capacity:
            return Verdict.fits
        if capacity < self.lower_bound:
            return Verdict.infeasible
        if not self.exact:
            return Verdict.unknown
        if capacity != self._capacity:
            self._capacity, self._budget, self._attempts = capacity, _STEP, []
            self._fresh = _orders(self.buffers, self._network)
        return self._in_turns(capacity, deadline, clock)

    @property
    def _network(self) -> InterferenceGraph:
        if self._graph is None:
            raise RuntimeError("the part is not laid out yet")
        return self._graph

    def _keep(self, offsets: Ints) -> None:
        height = int((offsets + self.buffers.size).max()) + self.part.base
        if height < self.height:
            self.best, self.height = offsets + self.part.base, height

    def _in_turns(self, capacity: int, deadline: float, clock: Clock) -> Verdict:
        """Run the open searches in turns, each for as many decisions; then more join, and the number doubles."""
        while True:
            while len(self._attempts) < min(self._most_attempts(), 3 * self._budget.bit_length() - 24):
                self._attempts.append(self._attempt(next(self._fresh)))
            for attempt in list(self._attempts):
                while attempt.nodes < self._budget:
                    if clock() > deadline:
                        return Verdict.unknown
                    nodes = min(attempt.nodes + _STEP, self._budget)
                    result = canonical.advance(attempt.state, capacity - self.part.base, nodes)
                    if result == canonical.FOUND:
                        self._keep(attempt.offsets())
                        return Verdict.fits
                    if result == canonical.EXHAUSTED:
                        unit, base = self.part.unit, self.part.base
                        self.lower_bound = base + ((capacity - base) // unit + 1) * unit
                        return Verdict.infeasible
                    if result == canonical.FULL:
                        self._attempts.remove(attempt)
                        break
            self._budget *= 2

    @property
    def _room(self) -> int:
        n = len(self.buffers)
        return min(n * n + 16 * n, _ROOM)

    def _most_attempts(self) -> int:
        return max(1, min(_SEARCHES, _SEARCH_BYTES // (4 * len(self._network.neighbour) + 16 * self._room)))

    def _attempt(self, order: Ints) -> Attempt:
        return Attempt(order, canonical.begin(self._network, self.buffers, order, self._room))


def _orders(part: Buffers, network: InterferenceGraph) -> Iterator[Ints]:
    """Yield orders for breaking ties, those that find most first, then endless variations of them."""
    length = (part.upper - part.lower).astype(float)
    size = part.size.astype(float)
    area = size * length
    sections = (network.last - network.first).astype(float)
    crowd = _crowd(part, network).astype(float)
    keys = (
        (crowd, area),
        (crowd, length, area),
        (sections, area),
        (length, crowd, area),
        (size, area),
        (crowd, sections, size),
    )
    for key in keys:
        yield np.lexsort((part.lower, *(-values for values in reversed(key))))
    rng = np.random.default_rng(0)
    while True:
        for first in (area, length, sections * size, crowd):
            noise = np.exp(_SPREAD * rng.standard_normal((2, len(part))))
            yield np.lexsort((part.lower, -area * noise[1], -first * noise[0]))


def _crowd(part: Buffers, network: InterferenceGraph) -> Ints:
    """Return the largest load in the lifetime of each buffer."""
    change = np.zeros(network.sections + 1, dtype=np.int64)
    np.add.at(change, network.first, part.size)
    np.add.at(change, network.last, -part.size)
    load = np.cumsum(change)
    return np.array([load[a:b].max() for a, b in zip(network.first, network.last, strict=True)], dtype=np.int64)
