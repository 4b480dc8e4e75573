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

A disk adds chains: R_k = reading of steps <= k, so that their weights arrive at A_k = latency + R_k; M_k = late parts, which
need the weights, of steps <= k on the main core; and, with one preparing core, F_k, the end of its late parts of steps <= k.
With late_k, the late part of step k, and tail(k) = min(k, widen_from) more rows are

    F_k >= F_(k-1) + late_k,  F_k >= A_k + late_k                                    if k is prepared there
    C >= F_k + E_tail(k)
    C >= A_k + late_k + E_tail(k)                                                    wherever k is prepared
    C >= A_k + late_k + (M_(N-1) - M_k) + E_tail(k)                                  if it is prepared on the main core

the last one since the main core's own preparations go in order. Conditions are large constants on the other choices; what has
no weights waits for none. The rows are necessary, and nearly sufficient: while weights are on their way kernels are made, so a
core is idle only when it has made all of its own; but they are made whole, and one may end after the weights have come. So
solutions are priced event by event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from edgeplan.planning.machine import MAIN, CostArrays, DiskArrays, Floats, Ints

_NEVER = np.iinfo(np.int64).max  # rows that end with no executions


@dataclass(frozen=True)
class MixedIntegerProgram:
    """A program has rows `lower <= matrix @ variables <= upper`; the variables are x, C, P, E and, with a disk, R, M and F.

    Attributes:
        step, candidate, place: step, candidate and place that each x stands for.
        matrix, lower, upper: the rows; the first `equalities` are equations.
        equalities: number of equations.
        cutoff: upper limit of C: only better schedules are of interest.
        widen_from: first step executed on all cores.
        due: for each row that is no equation the step whose tail it ends with: -1 for all executions, the number of steps for
            those on all cores; meant for one preparing core or none.
    """

    step: Ints
    candidate: Ints
    place: Ints
    matrix: csr_array
    lower: Floats
    upper: Floats
    equalities: int
    cutoff: float
    widen_from: int
    due: Ints

    @property
    def choices(self) -> int:
        """Return the number of binary variables."""
        return len(self.step)


class _Rows:
    """Rows of a sparse matrix, gathered as arrays of entries."""

    def __init__(self) -> None:
        self.rows: list[Ints] = []
        self.columns: list[Ints] = []
        self.values: list[Floats] = []

    def chain(self, at: int, sums: Ints, before: slice, after: slice, x: tuple[Ints, Floats]) -> None:
        """Add equations of running sums, one a step, from row `at` on: `sums[after] = sums[before] + values`."""
        step, values = x
        self.put(at + step, np.arange(len(step)), -values)
        self.put(at + np.arange(len(sums)), sums, 1.0)
        self.put(at + np.arange(len(sums))[after], sums[before], -1.0)

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


_FORWARD, _BACKWARD = (slice(None, -1), slice(1, None)), (slice(1, None), slice(None, -1))


def program(
    costs: CostArrays, widen_from: int, keep: npt.NDArray[np.bool_] | None = None, cutoff: float = np.inf
) -> MixedIntegerProgram:
    """Build the mixed-integer program of a schedule, whose profile has a preparing core, or a disk.

    Of the x those in `keep` are kept, shape (steps, candidates, 2: queue, main), all present ones by default; no makespan above
    the cutoff is of interest.
    """
    n, queues, every = costs.steps, max(costs.queues, 1), np.arange(costs.steps)
    if keep is None:
        keep = np.stack([costs.present & (costs.queues > 0), costs.present & costs.main_prepares], axis=2)
    step, candidate, place = np.nonzero(keep)
    cells, on_queue = (step, candidate), place == 0
    prepare = np.where(on_queue, costs.queue[cells], 0.0)
    x, c = np.arange(len(step)), len(step)
    p, e = c + 1 + every, c + 1 + n + every
    due = every[:widen_from]  # steps that wait for their own preparation alone; the one that widens waits for all
    rows = _Rows()
    rows.put(step, x, 1.0)
    rows.chain(n, p, *_FORWARD, (step, prepare / queues))
    rows.chain(2 * n, e, *_BACKWARD, (step, costs.execution(widen_from)[cells]))
    equalities = 3 * n if costs.disk is None else 5 * n
    ends = [np.array([-1]), due]
    at = equalities
    rows.put(at, np.array([c, e[0]]), np.array([1.0, -1.0]))
    rows.put(at, x, np.where(on_queue, 0.0, -costs.main[cells]))
    at += 1
    rows.put(at + due, c, 1.0)
    rows.put(at + due, p[due], -1.0)
    for i in range(queues):
        rows.put(at + due, e[np.maximum(due - i, 0)], -1.0 / queues)
    at += len(due)
    if widen_from < n:
        rows.put(at, np.array([c, p[-1], e[widen_from]]), np.array([1.0, -1.0, -1.0]))
        ends.append(np.array([n]))
        at += 1
    if queues > 1:
        tail = np.minimum(every, widen_from)
        rows.put(at + every, c, 1.0)
        rows.put(at + every[tail < n], e[tail[tail < n]], -1.0)
        rows.put(at + step, x, -prepare)
        ends.append(np.full(n, _NEVER))
        at += n
    if costs.disk is not None:
        ends += _put_disk(rows, costs, costs.disk, (step, candidate, ~on_queue), widen_from, at)
    due = np.concatenate(ends)
    lower = np.zeros(equalities + len(due))
    lower[:n] = 1.0
    upper = np.where(np.arange(len(lower)) < equalities, lower, np.inf)
    matrix = rows.matrix(len(lower), c + 1 + (2 if costs.disk is None else 5) * n)
    places = np.where(on_queue, 0, MAIN)
    return MixedIntegerProgram(step, candidate, places, matrix, lower, upper, equalities, cutoff, widen_from, due)


def _put_disk(
    rows: _Rows, costs: CostArrays, disk: DiskArrays, chosen: tuple[Ints, Ints, npt.NDArray[np.bool_]], widen_from: int, at: int
) -> list[Ints]:
    """Add the rows of a disk, from row `at` on, and its equations behind those there are; return the steps that rows end with.

    `chosen` is the step and candidate of each x, and whether it is prepared on the main core.
    """
    (step, candidate, on_main), n, every = chosen, costs.steps, np.arange(costs.steps)
    cells, x, c = (step, candidate), np.arange(len(step)), len(step)
    e, r, m, f = (c + 1 + i * n + every for i in range(1, 5))
    tail = np.minimum(every, widen_from)
    ends = every[tail < n]  # steps with executions behind
    late = np.where(on_main, costs.main[cells] - disk.early_main[cells], costs.queue[cells] - disk.early_queue[cells])
    read = disk.read[cells]
    # From here to the arrival, or below everything where the row is not meant.
    latest = disk.latency_ms + np.where(costs.present, disk.read, 0.0).max(axis=1).sum()
    beyond = latest + sum(np.where(costs.present, a, 0.0).max(axis=1).sum() for a in (costs.main, costs.queue))
    waiting = np.where(read > 0, -disk.latency_ms - late, beyond)
    rows.chain(3 * n, r, *_FORWARD, (step, read))
    rows.chain(4 * n, m, *_FORWARD, (step, np.where(on_main, late, 0.0)))
    found: list[Ints] = []
    if costs.queues == 1:
        rows.put(at + every, f, 1.0)
        rows.put(at + every[1:], f[:-1], -1.0)
        rows.put(at + step, x, np.where(on_main, 0.0, -late))
        rows.put(at + n + every, f, 1.0)
        rows.put(at + n + every, r, -1.0)
        rows.put(at + n + step, x, np.where(on_main, beyond, waiting))
        found.append(np.full(2 * n, _NEVER))
        rows.put(at + 2 * n + every, f, -1.0)
        at += 2 * n
    for first, conditions in ((at, None), (at + n, waiting), (at + 2 * n, np.where(on_main, waiting, beyond))):
        rows.put(first + every, c, 1.0)
        rows.put(first + ends, e[tail[ends]], -1.0)
        if conditions is not None:
            rows.put(first + every, r, -1.0)
            rows.put(first + step, x, conditions)
    rows.put(at + 2 * n + every[:-1], m[-1], -1.0)
    rows.put(at + 2 * n + every[:-1], m[:-1], 1.0)
    return [*found, every, every, every]


@dataclass(frozen=True)
class Relaxation:
    """A relaxation holds the solution of the linear relaxation.

    No schedule of the program is faster than the bound, infinity if none is as fast as its cutoff, which rises by `reduced` at
    least when a variable that is 0 becomes 1. Multipliers are dual values of the rows that are no equations, in their order
    (those of the rows `C >= ...` add up to 1), prices those of the equations.
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
    """Return a mask of the x that can be 1 in a schedule no slower than the cutoff (ms), by their reduced costs.

    `present` says which candidates exist; both masks have a last axis of places (queue, main) or none.
    """
    alive = found.bound + found.reduced <= cutoff
    keep = np.zeros((*present.shape, 2), dtype=bool)
    keep[p.step[alive], p.candidate[alive], np.where(p.place[alive] == MAIN, 1, 0)] = True
    return keep


def carried_bounds(costs: CostArrays, p: MixedIntegerProgram, found: Relaxation) -> Floats:
    """Return lower bounds (ms) for every widening from one relaxation of all candidates: neighbours have nearly the same.

    All rows hold for every widening, with its tails; so any multipliers give a bound. With fixed ones each step chooses alone:
    what it pays for preparing and reading stays, its execution counts in all rows whose tail it belongs to. There is one
    preparing core or none.
    """
    n, step, cells = costs.steps, p.step, (p.step, p.candidate)
    ending = p.due < _NEVER
    total = found.multipliers[ending].sum() if len(found.multipliers) else 0.0
    if total <= 0:  # no solution, or nothing takes any time
        return np.zeros(len(costs.widenings()))
    weights = np.zeros(n + 1)  # of the executions of step k: rows due at it or before
    np.add.at(weights, np.clip(p.due[ending], 0, n), found.multipliers[ending])
    passed = weights.cumsum()[:n]
    here = np.where(np.arange(n) < p.widen_from, passed, total)
    rest = found.reduced + found.prices[:n][step] - (here[step] * costs.execution(p.widen_from)[cells])
    before, after = np.full(n, np.inf), np.full(n, np.inf)
    np.minimum.at(before, step, rest + passed[step] * costs.narrow[cells])
    if costs.wide is None:
        return np.array([before.sum() / total])
    np.minimum.at(after, step, rest + total * costs.wide[cells])
    bounds: Floats = (np.append(0.0, before.cumsum()) + np.append(after[::-1].cumsum()[::-1], 0.0)) / total
    return bounds


@dataclass(frozen=True)
class MixedIntegerSolution:
    """A solution is a proven lower bound on the makespan of a program, at most its cutoff, and a schedule, if one was found.

    The schedule is candidate and place (0: a queue) by step; None if none below the cutoff exists or the time is up.
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
