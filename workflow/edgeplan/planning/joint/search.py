"""Plans of a first inference: a placement of weights and tensors, and an order of kernels, searched for its makespan."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from edgeplan.planning.joint import bounds
from edgeplan.planning.joint.first import FirstInference, Making, timeline
from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory import skyline
from edgeplan.planning.memory.quick import all_kept, enough_bytes
from edgeplan.planning.memory.workload import Placement

_NEAR = 1e-3  # a plan this near to its bound is not improved further
_TRIALS = 400  # simulated schedules of the search, so that a slow machine finds the same
_SEARCHED = 2  # placements and orders of kernels that are searched from
_STALLS = 3  # steps with the longest waits, before which kernels are tried to be made
_ROUNDING = 1e-9


@dataclass(frozen=True)
class FirstPlan:
    """A plan of a first inference, and what is known about it.

    Attributes:
        placement: where weights and tensors lie, and when loads begin.
        making: who makes each kernel, and when.
        budget: bytes for tensors and weights.
        makespan_ms: simulated, from the start of both threads to the end of the last step.
        lower_bound_ms: no first inference of these steps, kernels, budget and bandwidth is faster.
    """

    placement: Placement
    making: Making
    budget: int
    makespan_ms: float
    lower_bound_ms: float

    @property
    def gap(self) -> float:
        """Return the relative distance to the bound; 0 where both are."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def plan_first(
    problem: FirstInference, budget: int, layouts: Iterable[Ints], others: Iterable[Placement] = ()
) -> FirstPlan | None:
    """Plan where weights and tensors of a first inference lie, and who makes its kernels.

    Args:
        problem: steps and kernels.
        budget: bytes for tensors and weights.
        layouts: addresses of the tensors to place weights around.
        others: placements to hold beside.

    Returns:
        None if weights find no place in any of them.
    """
    bound = bounds.first_ms(problem, budget)
    search = _Search(problem, bound)
    placements = [*_placements(problem, budget, layouts), *(placed for placed in others if placed.height <= budget)]
    if not placements:
        return None
    begun = [(placed, making) for placed in placements for making in (by_turns(problem), before_all(problem))]
    begun.sort(key=lambda pair: search.price(*pair))
    makespan, making, placed = min(
        ((*search.improved(placed, making), placed) for placed, making in begun[:_SEARCHED]), key=lambda found: found[0]
    )
    if bound * (1 - _ROUNDING) <= makespan < bound:
        makespan = bound
    return FirstPlan(placed, making, budget, makespan, bound)


def by_turns(problem: FirstInference) -> Making:
    """Give each kernel, in the order of use, to the thread that has it made first; weights are not waited for."""
    own: list[tuple[int, int]] = []
    beside: list[int] = []
    now, other, step = 0.0, 0.0, 0
    compute = problem.workload.compute_ms.tolist()
    for kernel, use in problem.first_use.items():
        now += sum(compute[step:use])
        step, ms = use, problem.making_ms[kernel]
        if problem.beside and other < now:
            beside.append(kernel)
            other += ms
            now = max(now, other)
        else:
            own.append((kernel, use))
            now += ms
    return Making(tuple(own), tuple(beside))


def before_all(problem: FirstInference) -> Making:
    """Have the computing thread make all kernels before its first step, as where none are made meanwhile."""
    return Making(tuple((kernel, 0) for kernel in problem.first_use), ())


def _placements(problem: FirstInference, budget: int, layouts: Iterable[Ints]) -> Iterator[Placement]:
    """Yield placements of the weights around layouts of the tensors that fit."""
    work = problem.workload
    for offsets in layouts:
        if int((offsets + work.tensors.size).max(initial=0)) > budget:
            continue
        if enough_bytes(work, offsets) <= budget:
            yield all_kept(work, offsets)
            continue
        for rule in (skyline.TIGHTEST, skyline.LOWEST, skyline.HIGHEST):
            if (placed := skyline.place(work, offsets, budget, rule=rule)) is None:
                break  # whether there is a window does not depend on the rule
            yield placed


class _Search:
    """A search by single changes, of so many trials in all.

    Args:
        problem: steps and kernels.
        bound: that ends the search.
    """

    def __init__(self, problem: FirstInference, bound: float) -> None:
        self._problem, self._enough, self._left = problem, bound * (1 + _NEAR), _TRIALS

    def price(self, placed: Placement, making: Making) -> float:
        """Return the makespan of a placement and a making, ms."""
        return timeline(self._problem, placed, making).latency_ms

    def improved(self, placed: Placement, making: Making) -> tuple[float, Making]:
        """Change a making, one kernel at a time, as long as that makes the inference faster."""
        best, best_ms = making, self.price(placed, making)
        changed = True
        while changed:
            changed = False
            for kernel in self._problem.first_use:
                for other in self._changes(placed, best, kernel):
                    if best_ms <= self._enough or not self._left:
                        return best_ms, best
                    self._left -= 1
                    if (ms := self.price(placed, other)) < best_ms * (1 - _ROUNDING):
                        best, best_ms, changed = other, ms, True
        return best_ms, best

    def _changes(self, placed: Placement, making: Making, kernel: int) -> Iterator[Making]:
        """Yield makings that make one kernel elsewhere, or at another time."""
        use, beside = self._problem.first_use, making.beside
        rest = tuple(pair for pair in making.own if pair[0] != kernel)
        if len(rest) == len(making.own):  # the other thread makes it: earlier, or this one
            yield Making(_sorted((*rest, (kernel, use[kernel]))), tuple(one for one in beside if one != kernel))
            place = beside.index(kernel)
            if place:
                order = list(beside)
                order[place - 1 : place + 1] = [kernel, beside[place - 1]]
                yield Making(making.own, tuple(order))
            return
        if self._problem.beside:
            place = next((k for k, one in enumerate(beside) if use[one] > use[kernel]), len(beside))
            yield Making(rest, (*beside[:place], kernel, *beside[place:]))
        before = dict(making.own)[kernel]
        for step in self._stalls(placed, making, use[kernel]):
            if step != before:
                yield Making(_sorted((*rest, (kernel, step))), beside)

    def _stalls(self, placed: Placement, making: Making, last: int) -> Sequence[int]:
        """The steps up to one whose weights or kernels are waited for longest."""
        found = timeline(self._problem, placed, making)
        starts, ends = found.step_start[0].tolist(), [0.0, *found.step_end[0].tolist()]
        waits = [(ends[k] - starts[k], k) for k in range(last + 1) if not math.isclose(starts[k], ends[k])]
        return [k for _, k in sorted(waits)[:_STALLS]] or [last]


def _sorted(own: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(own, key=lambda pair: (pair[1], pair[0])))
