"""Exact decomposition: a step comparable with every other one cuts the model in time.

Everything before such a cut has ended when it starts, everything after it starts when it has ended.
So the makespan is that of the modules between the cuts, chained: a shortest path over the cuts,
whose state is the kind of the cut step. A chain of steps has no modules at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.simulate import Boundary

_NOTHING: tuple[float, ...] = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Module:
    """A module consists of the steps between two neighbouring cuts.

    Attributes:
        model: costs of the whole model.
        steps: positions, in order; none between cuts that follow each other.
        before, after: positions of the cuts; None at the model's ends.
    """

    model: PairCosts
    steps: tuple[int, ...]
    before: int | None
    after: int | None

    @cached_property
    def costs(self) -> PairCosts:
        """Return the costs of the module's steps."""
        return self.model.part(self.steps)

    def boundary(self, kind_before: int, kind_after: int) -> Boundary:
        """Return the boundary of the module, given the kinds of the cut steps."""
        entry = exits = (_NOTHING,) * len(self.steps)
        direct = 0.0
        if self.before is not None:
            delays = self.model.delays_ms[self.before][kind_before]
            entry = tuple(delays if self.before in self.model.steps[k].inputs else _NOTHING for k in self.steps)
        if self.after is not None:
            read = set(self.model.steps[self.after].inputs)
            tables = self.model.delays_ms
            exits = tuple(
                tuple(tables[k][kind][kind_after] for kind in range(3)) if k in read else _NOTHING for k in self.steps
            )
            if self.before in read and self.before is not None:
                direct = self.model.delays_ms[self.before][kind_before][kind_after]
        return Boundary(entry, exits, direct)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for modules of equal costs: one plan serves for all of them."""
        steps = []
        for s in self.costs.steps:
            options = tuple((o.kind, o.cpu_ms, o.gpu_ms) for o in s.options)
            steps.append((options, s.inputs, s.load, s.to_cpu_ms, s.to_gpu_ms))
        surroundings = tuple(self.boundary(a, b) for a in range(3) for b in range(3))
        return (tuple(steps), surroundings)


def cuts(costs: PairCosts) -> list[int]:
    """Return positions of the steps that are comparable with every other one and passed by no hand-over.

    A step is comparable with all before it if it is the only one that nothing before it or itself
    reads; likewise after it. A hand-over between steps on both sides of a cut runs beside the cut
    step: where it may take longer than the cut steps that it passes, these do not count as cuts.
    """
    if costs.occupying:  # what is read across a cut is paid for behind it
        return []
    n = len(costs.steps)
    comparable = [True] * n
    ends = 0
    read = [False] * n
    for k in range(n):
        ends += 1
        for i in costs.steps[k].inputs:
            ends -= not read[i]
            read[i] = True
        comparable[k] = ends == 1
    begins = 0
    reading = [False] * n
    for k in range(n - 1, -1, -1):
        begins += 1
        for r in costs.readers[k]:
            begins -= not reading[r]
            reading[r] = True
        comparable[k] = comparable[k] and begins == 1
    return _without_bypasses(costs, [k for k in range(n) if comparable[k]])


def _without_bypasses(costs: PairCosts, found: list[int]) -> list[int]:
    n = len(costs.steps)
    fastest = [min(o.span_ms for o in s.options) for s in costs.steps]
    passed_ms, number = [0.0] * (n + 1), [0] * (n + 1)  # sums over the cuts before a position
    is_cut = [False] * n
    for k in found:
        is_cut[k] = True
    for k in range(n):
        passed_ms[k + 1] = passed_ms[k] + (fastest[k] if is_cut[k] else 0.0)
        number[k + 1] = number[k] + is_cut[k]
    change = [0] * (n + 1)
    for k, step in enumerate(costs.steps):
        for i in step.inputs:
            longest = max(max(row) for row in costs.delays_ms[i])
            if number[k] > number[i + 1] and longest > passed_ms[k] - passed_ms[i + 1]:
                change[i + 1] += 1
                change[k] -= 1
    kept, over = [], 0
    for k in range(n):
        over += change[k]
        if is_cut[k] and not over:
            kept.append(k)
    return kept


def modules(costs: PairCosts, at: Sequence[int]) -> list[Module]:
    """Return the modules before, between and behind the cuts; one more than there are cuts."""
    borders = [None, *at, None]
    found = []
    for before, after in pairwise(borders):
        low = -1 if before is None else before
        high = len(costs.steps) if after is None else after
        found.append(Module(costs, tuple(range(low + 1, high)), before, after))
    return found
