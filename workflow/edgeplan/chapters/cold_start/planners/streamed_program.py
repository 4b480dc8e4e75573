"""Builds the mixed-integer program of `mixed_integer` with a disk, for one step from which execution widens.

With late_k, the part of the preparation of k that needs its weights (`streams`), and tail(k) = min(k, widen_from), there are
more chains: R_k = reading of steps <= k, M_k = late parts of steps <= k on the main core, and, with one preparing core,
F_k, the end of its late parts of steps <= k. The rows besides those of the program are

    F_k >= F_(k-1) + late_k,  F_k >= A_k + late_k                                    if k is prepared there
    C >= F_k + E_tail(k)
    C >= A_k + late_k + E_tail(k)                                                    wherever k is prepared
    C >= A_k + late_k + (M_(N-1) - M_k) + E_tail(k)                                  if it is prepared on the main core

the last one since the main core's own preparations go in order. Conditions are large constants on the other choices; what has
no weights waits for none. The rows are necessary, and nearly sufficient: while weights are on their way kernels are made, so a
core is idle only when it has made all of its own; but they are made whole, and one may end after the weights have come. So
solutions are priced by `streams.streamed_ms`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, hstack, vstack

from edgeplan.chapters.cold_start.planners.streams import Streams
from edgeplan.planning.machine import MAIN, Floats, Ints
from edgeplan.planning.mixed_integer import MixedIntegerProgram, Relaxation, SparseEntries, program


@dataclass(frozen=True)
class StreamedProgram:
    """Holds a mixed-integer program with a disk.

    Attributes:
        program: its variables behind those of the program without a disk are R, M and F.
        widen_from: first step executed on all cores.
        due: for each row that is no equation the step whose tail it ends with: -1 for all executions, the number of steps for
            those on all cores; meant for one preparing core or none.
    """

    program: MixedIntegerProgram
    widen_from: int
    due: Ints


def streamed_program(s: Streams, widen_from: int, keep: npt.NDArray[np.bool_] | None, cutoff: float) -> StreamedProgram:
    """Build the mixed-integer program of a schedule with a disk.

    Args:
        s: the profile and its disk.
        widen_from: first step executed on all cores.
        keep: which x to keep, shape (steps, candidates, 2: queue, main); all present ones by default.
        cutoff: no makespan above this is of interest.
    """
    costs, n = s.costs, s.costs.steps
    if keep is None:
        keep = np.repeat(costs.present[:, :, None], 2, axis=2)
    if costs.queues == 0:
        keep = keep & np.array([False, True])
    base = program(replace(costs, queues=max(costs.queues, 1)), widen_from, keep, cutoff)
    at_step, x, every, tail = base.step, np.arange(base.choices), np.arange(n), np.minimum(np.arange(n), widen_from)
    ends = every[tail < n]  # steps with executions behind
    cells, on_main = (base.step, base.candidate), base.place == MAIN
    late = np.where(on_main, costs.main[cells] - s.early_main[cells], costs.queue[cells] - s.early_queue[cells])
    read = s.read[cells]
    # From here to the arrival, or below everything where the row is not meant.
    latest = s.latency_ms + np.where(costs.present, s.read, 0.0).max(axis=1).sum()
    beyond = latest + sum(np.where(costs.present, a, 0.0).max(axis=1).sum() for a in (costs.main, costs.queue))
    waiting = np.where(read > 0, -s.latency_ms - late, beyond)

    width = base.matrix.shape[1]
    c, e = base.choices, base.choices + 1 + n + every
    r, m, f = (width + i * n + every for i in range(3))
    equal, rows = SparseEntries(), SparseEntries()
    for at, chain, values in ((0, r, read), (n, m, np.where(on_main, late, 0.0))):
        equal.put(at + at_step, x, -values)
        equal.put(at + every, chain, 1.0)
        equal.put(at + every[1:], chain[:-1], -1.0)
    at = 0
    if costs.queues == 1:
        rows.put(every, f, 1.0)
        rows.put(every[1:], f[:-1], -1.0)
        rows.put(at_step, x, np.where(on_main, 0.0, -late))
        rows.put(n + every, f, 1.0)
        rows.put(n + every, r, -1.0)
        rows.put(n + at_step, x, np.where(on_main, beyond, waiting))
        rows.put(2 * n + every, f, -1.0)
        at = 2 * n
    for first, conditions in ((at, None), (at + n, waiting), (at + 2 * n, np.where(on_main, waiting, beyond))):
        rows.put(first + every, c, 1.0)
        rows.put(first + ends, e[tail[ends]], -1.0)
        if conditions is not None:
            rows.put(first + every, r, -1.0)
            rows.put(first + at_step, x, conditions)
    rows.put(at + 2 * n + every[:-1], m[-1], -1.0)
    rows.put(at + 2 * n + every[:-1], m[:-1], 1.0)
    count = at + 3 * n
    due = np.concatenate([_base_due(base, n, widen_from), *[np.full(n, _NEVER)] * (at // n), every, every, every])
    joined = _joined(base, equal.matrix(2 * n, width + 3 * n), rows.matrix(count, width + 3 * n))
    return StreamedProgram(joined, widen_from, due)


_NEVER = np.iinfo(np.int64).max  # rows that end with no executions


def _base_due(base: MixedIntegerProgram, n: int, widen_from: int) -> Ints:
    """Return the steps of the rows of a program with one preparing core: all work, each step before widening, widening."""
    rest = base.matrix.shape[0] - base.equalities
    steps = [-1, *range(min(widen_from, n)), *([n] if widen_from < n else [])]
    return np.array((steps + [_NEVER] * rest)[:rest], dtype=np.int64)


def _joined(base: MixedIntegerProgram, equal: csr_array, rows: csr_array) -> MixedIntegerProgram:
    """Return the program with more columns, equations and rows; all have the right side 0, equal or at least."""
    count, more = base.matrix.shape[0], equal.shape[1] - base.matrix.shape[1]
    wide = hstack([base.matrix, csr_array((count, more))], format="csr")
    matrix = csr_array(vstack([wide[: base.equalities], equal, wide[base.equalities :], rows], format="csr"))
    equalities = base.equalities + equal.shape[0]
    lower = np.zeros(matrix.shape[0])
    lower[: base.equalities] = base.lower[: base.equalities]
    upper = np.where(np.arange(len(lower)) < equalities, lower, np.inf)
    return replace(base, matrix=matrix, lower=lower, upper=upper, equalities=equalities)


def carried_bounds(s: Streams, p: StreamedProgram, found: Relaxation) -> Floats:
    """Return lower bounds for every widening from one relaxation's multipliers: neighbours have nearly the same.

    All rows hold for every widening, with its tails; so any multipliers give a bound. With fixed ones each step chooses alone:
    what it pays for preparing and reading stays, its execution counts in all rows whose tail it belongs to. There is one
    preparing core or none.

    Args:
        s: the profile and its disk.
        p: the program that was relaxed, with all candidates.
        found: its relaxation.

    Returns:
        Bounds (ms) in the order of `CostArrays.widenings`.
    """
    costs, n = s.costs, s.costs.steps
    step, candidate = p.program.step, p.program.candidate
    ending = p.due < _NEVER
    total = found.multipliers[ending].sum() if len(found.multipliers) else 0.0
    if total <= 0:  # no solution, or nothing takes any time
        return np.zeros(len(costs.widenings()))
    weights = np.zeros(n + 1)  # of the executions of step k: rows due at it or before
    np.add.at(weights, np.clip(p.due[ending], 0, n), found.multipliers[ending])
    passed = weights.cumsum()[:n]
    here = np.where(np.arange(n) < p.widen_from, passed, total)
    rest = found.reduced + found.prices[:n][step] - (here[step] * costs.execution(p.widen_from)[step, candidate])
    before, after = np.full(n, np.inf), np.full(n, np.inf)
    np.minimum.at(before, step, rest + passed[step] * costs.narrow[step, candidate])
    if costs.wide is None:
        return np.array([before.sum() / total])
    np.minimum.at(after, step, rest + total * costs.wide[step, candidate])
    bounds: Floats = (np.append(0.0, before.cumsum()) + np.append(after[::-1].cumsum()[::-1], 0.0)) / total
    return bounds
