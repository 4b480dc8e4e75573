"""A layout of one part within a capacity: several exact searches that differ in how they break ties, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edgeplan.planning.layout import canonical, greedy
from edgeplan.planning.layout.buffers import Buffers, Ints, Verdict
from edgeplan.planning.layout.parts import Graph, Part, graph, pair_count

#: Beyond these a part is laid out by greedy heuristics alone.
_PAIRS = 25_000_000
_ROOM = 20_000_000
_FIRST_NODES = 1000
_STEPS_PER_S = 300_000_000  # of a sweep, at the least
Clock = Callable[[], float]


def _preorders(part: Buffers, network: Graph) -> list[Ints]:
    """Orders for breaking ties, the ones that differ most first."""
    length = (part.upper - part.lower).astype(float)
    area = part.size * length
    crowd = _crowd(part, network).astype(float)
    keys = (
        (-part.size, -area, -crowd),
        (-crowd, -area),
        (-area, -length),
        (-crowd, -length, -part.size),
        (-area, -part.size),
    )
    return [np.lexsort((part.lower, *key)) for key in keys]


def _crowd(part: Buffers, network: Graph) -> Ints:
    """The largest load in the lifetime of each buffer."""
    change = np.zeros(network.sections + 1, dtype=np.int64)
    np.add.at(change, network.first, part.size)
    np.add.at(change, network.last, -part.size)
    load = np.cumsum(change)
    return np.array([load[a:b].max() for a, b in zip(network.first, network.last, strict=True)], dtype=np.int64)


@dataclass
class PartSearch:
    """What is known of a part; it learns.

    Attributes:
        part: which buffers, from which address on.
        buffers: they.
        best: offsets of the lowest layout known, base included; None if there is none.
        height: of it.
        lower_bound: proven, base included.
    """

    part: Part
    buffers: Buffers
    best: Ints | None = None
    height: int = 0
    lower_bound: int = 0
    nodes: int = 0
    _graph: Graph | None = None
    _searches: list[canonical.State] = field(default_factory=list)
    _capacity: int = -1
    _budget: int = _FIRST_NODES

    @property
    def exact(self) -> bool:
        """Whether the part is small enough for an exact search."""
        return self._graph is not None

    def keep(self, offsets: Ints) -> None:
        """Keep a layout, offsets from the base on, if it is the lowest."""
        height = int((offsets + self.buffers.size).max()) + self.part.base
        if self.best is None or height < self.height:
            self.best, self.height = offsets + self.part.base, height

    def start(self, deadline: float, clock: Clock = time.perf_counter) -> None:
        """Lay the part out greedily."""
        self.lower_bound = self.part.lower_bound
        if pair_count(self.buffers) > _PAIRS:
            order = np.argsort(self.buffers.lower, kind="stable")
            limit = int(max(deadline - clock(), 0.1) * _STEPS_PER_S)
            if (found := greedy.sweep(self.buffers, order, limit)) is not None:
                self.keep(found)
            return
        self._graph = graph(self.buffers)
        for order in greedy.orders(self.buffers).values():
            self.keep(greedy.first_fit(self._graph, self.buffers, order))
            if self.height <= self.lower_bound or clock() > deadline:
                return

    def within(self, capacity: int, deadline: float, clock: Clock = time.perf_counter) -> Verdict:
        """Search for a layout that is no higher than `capacity`, for as long as there is time."""
        if self.best is not None and self.height <= capacity:
            return Verdict.fits
        if capacity < self.lower_bound:
            return Verdict.infeasible
        network = self._graph
        if network is None:
            return Verdict.unknown
        if capacity != self._capacity:
            n = len(self.buffers)
            room = min(4 * n * n + 8 * n, _ROOM)
            fresh = _preorders(self.buffers, network)
            states = [canonical.begin(network, self.buffers.size, self.buffers.alignment, order, room) for order in fresh]
            self._searches, self._orders = states, fresh
            self._capacity, self._budget = capacity, _FIRST_NODES
        return self._in_turns(capacity, deadline, clock)

    def _in_turns(self, capacity: int, deadline: float, clock: Clock) -> Verdict:
        while self._searches:
            for state, order in list(zip(self._searches, self._orders, strict=True)):
                left = self._budget
                while left > 0:
                    if clock() > deadline:
                        return Verdict.unknown
                    step = min(left, _FIRST_NODES)
                    before = int(state.registers[4])
                    result = canonical.advance(state, capacity - self.part.base, before + step)
                    self.nodes += int(state.registers[4]) - before
                    left -= step
                    if result == canonical.FOUND:
                        offsets = np.empty(len(order), dtype=np.int64)
                        offsets[order] = state.offset
                        self.keep(offsets)
                        self.winner = [o is order for o in self._orders].index(True)
                        return Verdict.fits
                    if result == canonical.EXHAUSTED:
                        unit, base = self.part.unit, self.part.base
                        self.lower_bound = base + ((capacity - base) // unit + 1) * unit
                        return Verdict.infeasible
                    if result == canonical.FULL:
                        keep = [k for k, other in enumerate(self._searches) if other is not state]
                        self._searches = [self._searches[k] for k in keep]
                        self._orders = [self._orders[k] for k in keep]
                        break
            self._budget *= 2
        return Verdict.unknown
