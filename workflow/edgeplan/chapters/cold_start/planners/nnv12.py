"""Plans by NNV12's heuristic kernel scheduler (Algorithm 1); line numbers in comments are the paper's.

As written, except where the text is ambiguous or would not end:

* Line 1, the filter, is `planning.profile.pareto`. The create time of a kernel, which the paper has for GPUs only, belongs
  to its preparation.
* Line 5, which measures each combination again, is left out: its plans took longer (docs/cold-start.md).
* Line 6 loops for ever when the big cores are the busier ones, when no preparation passes line 9, or when there are fewer
  preparations than little cores: the loop also ends when a round has moved nothing.
* Lines 10 and 12 with s := i would insert i again and would leave steps that line 9 passed over, and step 2 at first, on no
  core: the search goes on from i + 1, and line 12 takes every preparation that is not on the big cores.
* Line 18 with the difference of before the moves could move everything back and forth: the difference is that of now (line 20
  after each move), and the loop of line 13 ends when a pass moves nothing.
* After line 19 a little core keeps its preparations in the order of the steps, as Figure 7 draws them: any other order only
  delays.
* Moving "to the header" of the big cores (line 10) puts these preparations before all executions; when they run is left to the
  main core (see `machine`), which makes no difference to the makespan.
* Line 21: the paper's big cores always execute together. Equal cores are balanced with one of them as the big core, and the
  completion time is the least over the steps from which execution may widen.
* Line 2: all combinations up to a limit (2^12), else coordinate descent: from the candidates with the least preparation +
  execution, one step after the other takes the candidate with which the plan ends soonest, until no step changes.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from edgeplan.planning.machine import MAIN, CostArrays, KernelSchedule, cost_arrays, makespan_ms, makespans_ms
from edgeplan.planning.optimal import Outcome
from edgeplan.planning.profile import Profile

Combination = tuple[int, ...]
_EPSILON_MS = 0.05  # loads that differ by less count as balanced
_EXHAUSTIVE = 2**12  # combinations that are all tried; of more a descent tries some


def nnv12(profile: Profile) -> Outcome:
    """Plan a cold start by Algorithm 1 from a filtered profile (line 1)."""
    state = _State(cost_arrays(profile))
    counts = [len(layer.candidates) for layer in profile.layers]
    total = math.prod(counts)
    if total <= _EXHAUSTIVE:
        for combination in product(*map(range, counts)):  # 2
            state.visit(combination)
        how = f"all {total} combinations"
    else:
        _descend(state, counts)
        how = f"coordinate descent, {state.visited} of 10^{math.log10(total):.0f} combinations"
    schedule, _ = state.best  # 22
    return Outcome(profile, schedule, profile.start_ms + makespan_ms(state.costs, schedule), how)


class _State:
    """Keeps the outer loop's memory: the best combination so far."""

    def __init__(self, costs: CostArrays) -> None:
        self.costs, self.visited = costs, 0
        self.best = (KernelSchedule((), (), 0), math.inf)

    def visit(self, combination: Combination) -> bool:
        """Schedule a combination, and tell whether it is the best so far."""
        self.visited += 1
        choice = np.asarray(combination)
        place = np.asarray(balanced(self.costs, combination))
        makespans = makespans_ms(self.costs, choice, place)  # 21
        least = int(makespans.argmin())
        if not makespans[least] < self.best[1]:
            return False
        widen_from = self.costs.widenings()[least]
        self.best = (KernelSchedule(combination, tuple(place.tolist()), widen_from), float(makespans[least]))
        return True


def _descend(state: _State, counts: list[int]) -> None:
    current = tuple((state.costs.main + state.costs.narrow).argmin(axis=1).tolist())
    state.visit(current)
    changed = True
    while changed:
        changed = False
        for k, count in enumerate(counts):
            for o in range(count):
                if o != current[k] and state.visit((*current[:k], o, *current[k + 1 :])):
                    changed = True
            current = state.best[0].choice


def balanced(costs: CostArrays, combination: Combination) -> tuple[int, ...]:
    """Assign each step the core that prepares it, for one combination: the inner layer, lines 3-20."""
    n, cores = len(combination), costs.queues
    rows = np.arange(n)
    big: list[float] = costs.main[rows, combination].tolist()
    little: list[float] = costs.queue[rows, combination].tolist()
    place = [MAIN] * n
    if cores == 0:
        return tuple(place)
    q0 = float(costs.narrow[rows, combination].sum()) + big[0]  # 3: r_1, w_1 and all e_i on the big cores
    s = 1  # 3: the second step
    waiting = list(range(1, n))
    loads = [0.0] * cores  # 4
    load0 = first = -1.0  # 4: counts as 0, and tells the first round from the others
    queues: list[list[int]] = [[] for _ in range(cores)]
    moved = True
    while moved and (load0 == first or abs(max(loads) - load0) > _EPSILON_MS or min(loads) == 0):  # 6
        moved = load0 == first
        if not moved and max(loads) > load0:  # 7
            inserted = next((i for i in range(s, n) if big[i] + little[i] < max(loads) - load0), None)  # 8, 9
            if inserted is not None:
                waiting.remove(inserted)  # 10
                q0 += big[inserted]
                s, moved = inserted + 1, True
        queues, loads = _spread(waiting, little, cores)  # 12-19
        load0 = q0  # 20
    for j, queue in enumerate(queues):
        for i in queue:
            place[i] = j
    return tuple(place)


def _spread(waiting: list[int], little: list[float], cores: int) -> tuple[list[list[int]], list[float]]:
    """Spread waiting steps over the little cores (lines 12-20); return their queues and loads."""
    queues = [waiting[j::cores] for j in range(cores)]  # 12
    loads = [sum(little[i] for i in queue) for queue in queues]
    moved = True
    while moved and max(loads) - min(loads) > _EPSILON_MS:  # 13
        moved = False
        most, least = loads.index(max(loads)), loads.index(min(loads))  # 14, 15
        for i in sorted(queues[most], key=lambda i: -little[i]):  # 16, 17
            if little[i] < (loads[most] - loads[least]) / 2:  # 18
                queues[most].remove(i)
                queues[least].append(i)  # 19
                loads[most] -= little[i]  # 20
                loads[least] += little[i]
                moved = True
    return queues, loads
