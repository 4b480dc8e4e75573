"""Builds and solves the mixed-integer program of the optimal planner, for one step from which execution widens, by HiGHS.

Variables: x (one binary for each step, candidate and place), the makespan C and, so that every row stays sparse, chains instead
of sums: P_k = preparations of steps <= k on the preparing cores, E_k = executions of steps >= k. Rows:

    sum of x of a step = 1
    P_k = P_(k-1) + preparation of k on a preparing core        E_k = E_(k+1) + execution of k
    C >= E_0 + preparations on the main core
    C >= P_k + mean of E_k, E_(k-1), .. (as many as queues)  for k < widen_from,  C >= P_(N-1) + E_widen
    C >= preparation of k on a preparing core + E_min(k, widen)      (several queues only)

With one preparing core this is the exact makespan (see `machine`). With several, P is divided by their number: the queues are
relaxed to one of their joint speed. They end with different steps, whose tails add up to E_k + E_(k-1) + .. at least, hence the
mean; and one preparation runs on one of them, hence the last row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from edgeplan.planning.machine import MAIN, CostArrays, Floats, Ints


@dataclass(frozen=True)
class MixedIntegerProgram:
    """A program has rows `lower <= matrix @ variables <= upper`; the variables are x, C, P, E in this order.

    Attributes:
        step, candidate, place: step, candidate and place that each x stands for.
        matrix, lower, upper: the rows; the first `equalities` are equations.
        equalities: number of equations.
        cutoff: upper limit of C: only better schedules are of interest.
    """

    step: Ints
    candidate: Ints
    place: Ints
    matrix: csr_array
    lower: Floats
    upper: Floats
    equalities: int
    cutoff: float

    @property
    def choices(self) -> int:
        """Return the number of binary variables."""
        return len(self.step)


class SparseEntries:
    """Sparse entries of a matrix are gathered as arrays."""

    def __init__(self) -> None:
        self.rows: list[Ints] = []
        self.columns: list[Ints] = []
        self.values: list[Floats] = []

    def put(self, rows: npt.ArrayLike, columns: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Add entries; the arrays are broadcast against each other, entries at the same place add up."""
        r, c, v = np.broadcast_arrays(np.asarray(rows), np.asarray(columns), np.asarray(values, dtype=np.float64))
        self.rows.append(r.ravel())
        self.columns.append(c.ravel())
        self.values.append(v.ravel())

    def matrix(self, rows: int, columns: int) -> csr_array:
        """Build the sparse matrix of all constraints."""
        r, c, v = (np.concatenate(parts) for parts in (self.rows, self.columns, self.values))
        return csr_array((v, (r, c)), shape=(rows, columns))


def program(costs: CostArrays, widen_from: int, keep: npt.NDArray[np.bool_] | None, cutoff: float) -> MixedIntegerProgram:
    """Build the mixed-integer program of a schedule.

    Args:
        costs: costs of the profile; it has a preparing core.
        widen_from: first step executed on all cores.
        keep: which x to keep, shape (steps, candidates, 2: queue, main); all present ones by default.
        cutoff: no makespan above this is of interest.
    """
    n, queues = costs.steps, costs.queues
    if keep is None:
        keep = np.stack([costs.present, costs.present & costs.main_prepares], axis=2)
    step, candidate, place = np.nonzero(keep)
    on_queue = place == 0
    prepare = np.where(on_queue, costs.queue[step, candidate], 0.0)
    x, c = np.arange(len(step)), len(step)
    p, e = c + 1 + np.arange(n), c + 1 + n + np.arange(n)
    due = np.arange(min(widen_from, n))  # steps that wait for their own preparation alone; the one that widens waits for all
    rows, every = SparseEntries(), np.arange(n)
    rows.put(step, x, 1.0)
    rows.put(n + step, x, -prepare / queues)
    rows.put(n + every, p, 1.0)
    rows.put(n + every[1:], p[:-1], -1.0)
    rows.put(2 * n + step, x, -costs.execution(widen_from)[step, candidate])
    rows.put(2 * n + every, e, 1.0)
    rows.put(2 * n + every[:-1], e[1:], -1.0)
    at = equalities = 3 * n
    rows.put(at, np.array([c, e[0]]), np.array([1.0, -1.0]))
    rows.put(at, x, np.where(on_queue, 0.0, -costs.main[step, candidate]))
    at += 1
    rows.put(at + due, c, 1.0)
    rows.put(at + due, p[due], -1.0)
    for i in range(queues):
        rows.put(at + due, e[np.maximum(due - i, 0)], -1.0 / queues)
    at += len(due)
    if widen_from < n:
        rows.put(at, np.array([c, p[-1], e[widen_from]]), np.array([1.0, -1.0, -1.0]))
        at += 1
    if queues > 1:
        tail = np.minimum(every, widen_from)
        rows.put(at + every, c, 1.0)
        rows.put(at + every[tail < n], e[tail[tail < n]], -1.0)
        rows.put(at + step, x, -prepare)
        at += n
    lower = np.zeros(at)
    lower[:n] = 1.0
    upper = np.where(np.arange(at) < equalities, lower, np.inf)
    matrix = rows.matrix(at, c + 1 + 2 * n)
    return MixedIntegerProgram(step, candidate, np.where(on_queue, 0, MAIN), matrix, lower, upper, equalities, cutoff)


@dataclass(frozen=True)
class Relaxation:
    """A relaxation holds the solution of the linear relaxation.

    Attributes:
        bound: no schedule of this program is faster; infinity if none is as fast as its cutoff.
        x: values of the binary variables.
        reduced: by how much the bound rises at least when a variable that is 0 becomes 1.
        multipliers: dual values of the rows that are no equations, in their order; those of the rows `C >= ...` add up to 1.
        prices: dual values of the equations, in their order.
    """

    bound: float
    x: Floats
    reduced: Floats
    multipliers: Floats
    prices: Floats


def relax(p: MixedIntegerProgram) -> Relaxation:
    """Solve the linear relaxation of a program."""
    cost = np.zeros(p.matrix.shape[1])
    cost[p.choices] = 1.0
    eq, le = p.matrix[: p.equalities], -p.matrix[p.equalities :]
    result = linprog(cost, A_eq=eq, b_eq=p.lower[: p.equalities], A_ub=le, b_ub=-p.lower[p.equalities :], method="highs")
    if result.x is None:
        return Relaxation(-np.inf, np.zeros(p.choices), np.zeros(p.choices), np.zeros(0), np.zeros(0))
    multipliers = np.maximum(-result.ineqlin.marginals, 0.0)
    reduced = result.lower.marginals[: p.choices]
    return Relaxation(float(result.fun), result.x[: p.choices], reduced, multipliers, result.eqlin.marginals)


def promising(
    p: MixedIntegerProgram, found: Relaxation, cutoff: float, present: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the x that can be 1 in a schedule no slower than the cutoff, by their reduced costs.

    Args:
        p: the program that was relaxed.
        found: its relaxation.
        cutoff: makespan (ms).
        present: which candidates exist, shape (steps, candidates).
    """
    alive = found.bound + found.reduced <= cutoff
    keep = np.zeros((*present.shape, 2), dtype=bool)
    keep[p.step[alive], p.candidate[alive], np.where(p.place[alive] == MAIN, 1, 0)] = True
    return keep


@dataclass(frozen=True)
class MixedIntegerSolution:
    """A solution holds the schedule and the bound that the solver found.

    Attributes:
        bound: proven lower bound on the makespan of this program, at most its cutoff.
        schedule: candidate and place (0: a queue) by step; None if none below the cutoff exists or the time is up.
    """

    bound: float
    schedule: tuple[Ints, Ints] | None


def solve(p: MixedIntegerProgram, *, gap: float, time_limit_s: float) -> MixedIntegerSolution:
    """Solve the program to a relative gap."""
    cost = np.zeros(p.matrix.shape[1])
    cost[p.choices] = 1.0
    high = np.full(len(cost), np.inf)
    high[: p.choices] = 1.0
    high[p.choices] = p.cutoff
    integral = np.zeros(len(cost))
    integral[: p.choices] = 1
    result = milp(
        cost,
        constraints=LinearConstraint(p.matrix, p.lower, p.upper),
        integrality=integral,
        bounds=Bounds(np.zeros(len(cost)), high),
        options={"mip_rel_gap": gap, "time_limit": time_limit_s},
    )
    infeasible = 2
    if result.status == infeasible:
        return MixedIntegerSolution(p.cutoff, None)
    bound = min(float(result.mip_dual_bound), p.cutoff) if result.mip_dual_bound is not None else -np.inf
    if result.x is None:
        return MixedIntegerSolution(bound, None)
    chosen = np.flatnonzero(result.x[: p.choices] > 0.5)  # binary, and x is sorted by step
    return MixedIntegerSolution(bound, (p.candidate[chosen], p.place[chosen]))
