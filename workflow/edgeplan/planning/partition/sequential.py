"""The best plan that runs one step at a time, by dynamic programming over the order of the steps.

A step's time enters a sequence by its kind alone: of each kind only the fastest option counts.
Where memory is shared, the state between two steps is the kind of the first: 3 states, O(steps) in
all, and the result is the optimum. Where outputs must be moved, the state also says which memories
hold each output that is still to be read (a copy is paid once); the number of states then grows
with the outputs alive at once, up to a limit. States beyond it are dropped, the best kept, and the
bound accounts for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Choice, PairCosts

_HELD = (1, 2, 0)  # memories with all of an output, by its step's kind: bit 0 the CPU's
_NEEDED = (1, 2, 3)
_TRANSITIONS = 400_000  # a second or two
_MOST, _FEWEST = 20_000, 50
_CELLS = 4_000_000  # states times outputs alive, which is what a state holds

State = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class InSequence:
    """A sequence has the best choice of options, its makespan, and what no choice beats."""

    choice: Choice
    makespan_ms: float
    lower_bound_ms: float


def sequential(costs: PairCosts) -> InSequence:
    """Plan one step at a time.

    Args:
        costs: with the options to choose from; the order of its steps is kept.
    """
    n = len(costs.steps)
    best = [[s.best(kind) for kind in (CPU, GPU, SPLIT)] for s in costs.steps]
    rest = [0.0] * (n + 1)
    for k in range(n - 1, -1, -1):
        rest[k] = rest[k + 1] + min(o.span_ms for o in best[k] if o is not None)
    moves = _Moves(costs)
    allowed = max(min(_TRANSITIONS // n, _MOST), _FEWEST)
    bound = math.inf
    states: dict[State, float] = {(-1, ()): 0.0}
    parents: list[dict[State, State]] = []
    for k in range(n):
        reached: dict[State, float] = {}
        parent: dict[State, State] = {}
        for state, cost in states.items():
            for kind, option in enumerate(best[k]):
                if option is None:
                    continue
                paid, held = moves.after(k, kind, state[1])
                wait = costs.synchronisation_ms[state[0]][kind] if k else 0.0
                total = cost + wait + paid + option.span_ms
                if total < reached.get(new := (kind, held), math.inf):
                    reached[new], parent[new] = total, state
        most = max(min(allowed, _CELLS // (n * (len(moves.alive[k]) + 1))), 1)
        if len(reached) > most:
            kept = sorted(reached, key=reached.__getitem__)
            bound = min(bound, reached[kept[most]] + rest[k + 1])
            reached = {state: reached[state] for state in kept[:most]}
            parent = {state: parent[state] for state in reached}
        states = reached
        parents.append(parent)
    last = min(states, key=states.__getitem__)
    makespan, kinds = states[last], []
    for parent in reversed(parents):
        kinds.append(last[0])
        last = parent[last]
    choice = []
    for step, options, kind in zip(costs.steps, best, reversed(kinds), strict=True):
        chosen = options[kind]
        assert chosen is not None  # noqa: S101  a state of this kind was reached by it
        choice.append(step.options.index(chosen))
    return InSequence(tuple(choice), makespan, min(bound, makespan))


class _Moves:
    """Which outputs are still to be read and cost something to move, and where they are."""

    def __init__(self, costs: PairCosts) -> None:
        self.costs = costs
        last = [readers[-1] if readers else -1 for readers in costs.readers]
        movable = [bool(s.to_cpu_ms or s.to_gpu_ms) for s in costs.steps]
        self.alive: list[tuple[int, ...]] = []
        alive: tuple[int, ...] = ()
        for k in range(len(costs.steps)):
            alive = tuple(i for i in (*alive, k) if movable[i] and last[i] > k)
            self.alive.append(alive)

    def after(self, k: int, kind: int, held: tuple[int, ...]) -> tuple[float, tuple[int, ...]]:
        """Return the cost of movement that step `k` pays, and the memories that hold each tensor alive after it."""
        alive = self.alive[k - 1] if k else ()
        if not alive and not self.alive[k]:
            return 0.0, ()
        where = dict(zip(alive, held, strict=True))
        to_cpu = to_gpu = 0.0
        for i in self.costs.steps[k].inputs:
            if i in where:
                lacking = _NEEDED[kind] & ~where[i]
                to_cpu += self.costs.steps[i].to_cpu_ms if lacking & 1 else 0.0
                to_gpu += self.costs.steps[i].to_gpu_ms if lacking & 2 else 0.0
                where[i] |= lacking
        where[k] = _HELD[kind]
        return max(to_cpu, to_gpu), tuple(where[i] for i in self.alive[k])
