"""Plans with steps side by side: a shortest path over the cuts, modules solved where it matters.

The path's state is the kind of the cut step. What a module takes between two cuts depends on their
kinds: 9 pairs. For each pair a module has a makespan (of the best schedule known, priced by
simulation) and a bound; at first those of `quick`. The path of least makespans is the plan, the
path of least bounds the proven bound. While the two are further apart than the gap asked for, the
modules on the path of bounds are solved for the kinds they have there, the widest difference first.
What one solution proves carries over to the other pairs, less what their hand-overs differ by.
Modules of equal costs share everything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgeplan.planning.partition.branches import slowed, solve
from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.modules import Module, cuts, modules
from edgeplan.planning.partition.quick import list_schedules, load_bound_ms, path_bound_ms
from edgeplan.planning.partition.sequential import sequential
from edgeplan.planning.partition.simulate import Boundary, OptionSchedule, queues_by, side_by_side

_KINDS = range(3)
_PAIRS = tuple((a, b) for a in _KINDS for b in _KINDS)
_LARGEST = 6000  # options in a module, beyond which its program takes long to build
_FEWEST_SECONDS = 0.2

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """A search is limited by a gap and a time.

    Attributes:
        gap: relative gap to prove.
        time_limit_s: after this time the best found is returned with what is proven by then.
    """

    gap: float = 1e-3
    time_limit_s: float = 20.0


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A schedule with its bound and how it was found.

    Attributes:
        schedule: with queues for both processors.
        makespan_ms: length of its path, which a simulation of the whole takes, too.
        lower_bound_ms: no schedule is faster.
        note: how it was found.
    """

    schedule: OptionSchedule
    makespan_ms: float
    lower_bound_ms: float
    note: str


@dataclass
class _Solved:
    """A solved module keeps its schedules and bounds by the kinds of its cuts."""

    costs: PairCosts
    boundaries: dict[Pair, Boundary]
    makespan: dict[Pair, float] = field(default_factory=dict)
    bound: dict[Pair, float] = field(default_factory=dict)
    schedule: dict[Pair, OptionSchedule] = field(default_factory=dict)
    tried: dict[Pair, int] = field(default_factory=dict)

    def offer(self, schedule: OptionSchedule) -> None:
        """Price a schedule for every pair."""
        priced: dict[Boundary, float] = {}  # at the model's ends all kinds are equal
        for pair, boundary in self.boundaries.items():
            if boundary not in priced:
                priced[boundary] = side_by_side(self.costs, schedule, boundary).makespan_ms
            ms = priced[boundary]
            if pair not in self.makespan or ms < self.makespan[pair]:
                self.makespan[pair], self.schedule[pair] = ms, schedule

    def prove(self, pair: Pair, bound_ms: float) -> None:
        """Raise the bound of a pair, and those of the others by what follows."""
        here = self.boundaries[pair]
        for other, there in self.boundaries.items():
            carried = bound_ms - _excess(here.entry_ms, there.entry_ms) - _excess(here.exit_ms, there.exit_ms)
            carried = bound_ms if other == pair else carried - max(here.direct_ms - there.direct_ms, 0.0)
            self.bound[other] = min(max(self.bound[other], carried), self.makespan[other])

    def gap(self, pair: Pair) -> float:
        """Difference between what is known and what is proven."""
        return self.makespan[pair] - self.bound[pair]


def _excess(here: Sequence[Sequence[float]], there: Sequence[Sequence[float]]) -> float:
    """By how much delays exceed others at most: shifting a schedule by that makes it fit."""
    return max((a - b for x, y in zip(here, there, strict=True) for a, b in zip(x, y, strict=True)), default=0.0)


def parallel(costs: PairCosts, search: SearchLimits) -> SideBySide:
    """Plan with steps side by side.

    Args:
        costs: with the options to choose from.
        search: how hard to search.
    """
    until = time.monotonic() + search.time_limit_s
    chain = _Chain(costs, search.gap)
    solved = 0
    while True:
        plan_ms, pairs = chain.path("makespan")
        bound_ms, critical = chain.path("bound")
        left = until - time.monotonic()
        if plan_ms <= bound_ms * (1 + search.gap) or left <= 0:
            break
        waiting = chain.open(critical) or chain.open(pairs)
        if not waiting:
            break
        module, pair = waiting[0]
        share = max(left / len(waiting), _FEWEST_SECONDS)
        chain.refine(module, pair, min(share, left))
        solved += 1
    count = sum(bool(m.steps) for m in chain.parts)
    note = f"{len(chain.cuts)} cuts, {count} branch modules ({len(chain.branches)} different), {solved} solved"
    return SideBySide(chain.schedule(pairs), plan_ms, min(bound_ms, plan_ms), note)


class _Chain:
    """A chain holds the cuts and the modules between them."""

    def __init__(self, costs: PairCosts, gap: float) -> None:
        self.costs, self.gap = costs, gap
        self.cuts = cuts(costs)
        self.parts = modules(costs, self.cuts)
        shared: dict[object, _Solved] = {}
        self.known = []
        self.branches: list[_Solved] = []
        for part in self.parts:
            if (key := part.key) not in shared:
                shared[key] = _first(part)
                if part.steps:
                    self.branches.append(shared[key])
            self.known.append(shared[key])

    def path(self, what: str) -> tuple[float, list[Pair]]:
        """Return the length of the shortest path, by makespans or bounds, and each module's pair of kinds on it."""
        reached = {0: 0.0}  # nothing precedes the first module: any kind
        back: list[dict[int, int]] = []
        for i, known in enumerate(self.known):
            table = known.makespan if what == "makespan" else known.bound
            last = i == len(self.cuts)
            following: dict[int, float] = {}
            origin: dict[int, int] = {}
            options = [None] * 3 if last else [self.costs.steps[self.cuts[i]].best(kind) for kind in _KINDS]
            for kind, option in enumerate(options):
                if (option is None and not last) or (last and kind):
                    continue
                own = option.span_ms if option is not None else 0.0
                before = min(reached, key=lambda a: reached[a] + table[a, kind])
                following[kind], origin[kind] = reached[before] + table[before, kind] + own, before
            reached = following
            back.append(origin)
        pairs: list[Pair] = []
        kind = 0
        for origin in reversed(back):
            pairs.append((origin[kind], kind))
            kind = origin[kind]
        return reached[0], pairs[::-1]

    def open(self, pairs: Sequence[Pair]) -> list[tuple[_Solved, Pair]]:
        """Different modules on a path whose gap solving may close, the widest first."""
        found = {}
        for known, pair in zip(self.known, pairs, strict=True):
            solvable = 0 < sum(len(s.options) for s in known.costs.steps) <= _LARGEST
            if solvable and known.gap(pair) > self.gap * known.makespan[pair] / 2 and known.tried.get(pair, 0) < _TRIES:
                found[id(known), pair] = (known, pair)
        return sorted(found.values(), key=lambda f: -f[0].gap(f[1]))

    def refine(self, known: _Solved, pair: Pair, seconds: float) -> None:
        """Solve a module for a pair of kinds."""
        known.tried[pair] = known.tried.get(pair, 0) + 1
        boundary = known.boundaries[pair]
        start = known.schedule[pair]
        costs = [known.costs, slowed(known.costs)] if known.costs.disturbed else [known.costs]
        for i, c in enumerate(costs):
            best_ms = side_by_side(c, start, boundary).makespan_ms
            bound_ms = 0.0 if i else known.bound[pair]
            found = solve(c, boundary, (start, best_ms), bound_ms=bound_ms, gap=self.gap / 2, seconds=seconds / len(costs))
            if found.schedule is not None:
                known.offer(found.schedule)
            if not i:
                known.prove(pair, found.lower_bound_ms)

    def schedule(self, pairs: Sequence[Pair]) -> OptionSchedule:
        """Return the plan along a path."""
        choice = [0] * len(self.costs.steps)
        queues: tuple[list[int], list[int]] = ([], [])
        for i, (part, known, pair) in enumerate(zip(self.parts, self.known, pairs, strict=True)):
            schedule = known.schedule[pair]
            for k, position in zip(part.steps, schedule.choice, strict=True):
                choice[k] = position
            for steps, queue in zip(schedule.queues or ((), ()), queues, strict=True):
                queue.extend(part.steps[k] for k in steps)
            if i < len(self.cuts):
                step = self.costs.steps[self.cuts[i]]
                option = step.best(pair[1])
                assert option is not None  # noqa: S101  the path goes through it
                choice[self.cuts[i]] = step.options.index(option)
                for queue, busy in zip(queues, (option.cpu_ms, option.gpu_ms), strict=True):
                    if busy > 0:
                        queue.append(self.cuts[i])
        return OptionSchedule(tuple(choice), (tuple(queues[0]), tuple(queues[1])))


_TRIES = 2


def _first(part: Module) -> _Solved:
    """Return the bounds of a module before any solver ran."""
    boundaries = {pair: part.boundary(*pair) for pair in _PAIRS}
    known = _Solved(part.costs, boundaries)
    if not part.steps:
        nothing = OptionSchedule((), ((), ()))
        for pair, boundary in boundaries.items():
            known.makespan[pair] = known.bound[pair] = boundary.direct_ms
            known.schedule[pair] = nothing
        return known
    in_order = sequential(part.costs).choice
    known.offer(OptionSchedule(in_order, queues_by(part.costs, in_order, range(len(in_order)))))
    for schedule in list_schedules(part.costs, boundaries[0, 0]):
        known.offer(schedule)
    load_ms = load_bound_ms(part.costs)
    for pair, boundary in boundaries.items():
        known.bound[pair] = min(max(path_bound_ms(part.costs, boundary), load_ms), known.makespan[pair])
    return known
