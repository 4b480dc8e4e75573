"""Steps of a module side by side, as a constraint program on OR-tools' CP-SAT.

Variables: x (one binary for each step and option), start and end of each step, the makespan M.

* Each option with a busy time on a processor is an interval there, of fixed size, there only if the
  option is chosen. Intervals of one processor do not overlap. A split has one on both, with one
  start. An option without busy time has no interval: one of size zero could not lie within another,
  and the program would lose its optimum.
* end = start + sum of spans x; a reader starts after the end and the delay between the two kinds,
  if both are chosen.
* M is at least the loads of both processors, sum of c x and sum of g x, which the solver does not
  see by itself. With contention they are the sums of `PairCosts.load_weights`.
* With contention there is a variable for the time in which a step of one load runs on the CPU beside
  another step of one load on the GPU, for each pair of loads. A processor is busy for its work and
  for what it loses in these times to the factors; that is at most M, and so is the time in which at
  least one of them is busy: both sums less the overlaps and the time that both work on one split.
  No load overlaps for longer than its work lasts there.
* M is at least the largest end.
* Where readers move what they read, a step is longer by the outputs that it alone reads and that lie
  in the other memory. Outputs with several readers are left to the simulation, so the bound holds.

Times are counted in ticks, rounded down: what the solver proves holds for the true times, too, and
the schedule that it finds is priced by the simulation. Of contention only these sums know, so the
bound holds with it; a second program, with times as slow as contention makes them at worst, finds
schedules for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from edgeplan.errors import DeviceError
from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, PairCosts
from edgeplan.planning.partition.simulate import Boundary, OptionSchedule, queues_by
from edgeplan.support.lazy import lazily

cp_model = lazily("ortools.sat.python.cp_model")  # an extra: only plans side by side need it

_TICKS = 2**20  # of the best makespan known: a step's rounding is below a millionth of it
_SCALE = 1 << 10  # of contention factors, which are whole numbers in the program
_KINDS = range(3)


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution holds the bound and the schedule that the solver found.

    Attributes:
        lower_bound_ms: no schedule is faster.
        schedule: None if it found none in its time.
    """

    lower_bound_ms: float
    schedule: OptionSchedule | None


def solver() -> Any:
    """Import the CP-SAT solver of OR-tools."""
    try:
        cp_model.CpModel  # noqa: B018  asked for, so that it is imported
    except ImportError as error:
        raise DeviceError(
            f"steps side by side are planned by OR-tools, which cannot be imported ({error})",
            where="this environment",
            next_step="pip install 'edgeplan[partition]', or plan one step at a time: --mode sequential",
        ) from error
    return cp_model


def slowed(costs: PairCosts) -> PairCosts:
    """Return the same steps with the times that contention makes of whole options at worst."""
    worst = {side: {"compute": 1.0, "bandwidth": 1.0} for side in (CPU, GPU)}
    for loads, factors in (costs.contention or {}).items():
        for side in (CPU, GPU):
            worst[side][loads[side]] = max(worst[side][loads[side]], factors[side])
    steps = []
    for s in costs.steps:
        options = tuple(
            o if o.kind == SPLIT else replace(o, cpu_ms=o.cpu_ms * worst[CPU][s.load], gpu_ms=o.gpu_ms * worst[GPU][s.load])
            for o in s.options
        )
        steps.append(replace(s, options=options))
    return replace(costs, steps=tuple(steps), contention=None)


def solve(
    costs: PairCosts, boundary: Boundary, known: tuple[OptionSchedule, float], *, bound_ms: float, gap: float, seconds: float
) -> Solution:
    """Search for a faster schedule and prove a bound.

    Args:
        costs: of a module; contention counts in its loads only.
        boundary: what surrounds it.
        known: a schedule, where the search begins, and its makespan.
        bound_ms: a bound that is known.
        gap: relative gap to prove.
        seconds: after which the best found is returned.
    """
    hint, best_ms = known
    if best_ms <= 0:
        return Solution(0.0, None)
    program = _Program(solver(), costs, boundary, best_ms, bound_ms)
    program.hint(hint)
    return program.solve(gap, seconds)


class _Program:
    def __init__(self, cp: Any, costs: PairCosts, boundary: Boundary, best_ms: float, bound_ms: float) -> None:
        self.cp, self.costs, self.tick = cp, costs, best_ms / _TICKS
        self.model = cp.CpModel()
        limit = math.ceil(best_ms / self.tick) + 1
        self.makespan = self.model.new_int_var(min(self._ticks(bound_ms), limit), limit, "")
        self.starts: list[Any] = []
        self.ends: list[Any] = []
        self.chosen: list[list[Any]] = []
        self.kind: list[list[Any]] = []
        self._steps(limit)
        self._boundary(boundary)
        self._edges()
        self._loads(boundary, limit)
        self.model.minimize(self.makespan)

    def _ticks(self, ms: float) -> int:
        return math.floor(ms / self.tick)

    def _steps(self, limit: int) -> None:
        lanes: tuple[list[Any], list[Any]] = ([], [])
        for step in self.costs.steps:
            start, end = (self.model.new_int_var(0, limit, "") for _ in range(2))
            x = [self.model.new_bool_var("") for _ in step.options]
            self.model.add_exactly_one(x)
            spans = [self._ticks(o.span_ms) for o in step.options]
            moving = self._moving(len(self.starts), limit, x) if self.costs.occupying else 0
            self.model.add(end == start + moving + sum(span * var for span, var in zip(spans, x, strict=True)))
            for option, var in zip(step.options, x, strict=True):
                for lane, busy in zip(lanes, (option.cpu_ms, option.gpu_ms), strict=True):
                    if not (size := self._ticks(busy)):
                        continue
                    if self.costs.occupying:
                        until = self.model.new_int_var(0, 2 * limit, "")
                        lane.append(self.model.new_optional_interval_var(start, size + moving, until, var, ""))
                    else:
                        lane.append(self.model.new_optional_fixed_size_interval_var(start, size, var, ""))
            self.starts.append(start)
            self.ends.append(end)
            self.chosen.append(x)
            self.kind.append([sum(var for o, var in zip(step.options, x, strict=True) if o.kind == kind) for kind in _KINDS])
        for lane in lanes:
            self.model.add_no_overlap(lane)

    def _moving(self, k: int, limit: int, x: list[Any]) -> Any:
        """Return the time in which a step's processors move what it alone reads; other outputs may have been moved before."""
        moving, step = self.model.new_int_var(0, limit, ""), self.costs.steps[k]
        for side in (CPU, GPU):
            uses = sum(var for o, var in zip(step.options, x, strict=True) if o.kind in (side, SPLIT))
            moved: Any = 0
            for i in step.inputs:
                ms = self.costs.steps[i].to_gpu_ms if side == GPU else self.costs.steps[i].to_cpu_ms
                if (size := self._ticks(ms)) and self.costs.readers[i] == (k,):
                    needed = self.model.new_bool_var("")
                    self.model.add(needed >= uses - self.kind[i][side])
                    moved += size * needed
            self.model.add(moving >= moved)
        return moving

    def _boundary(self, boundary: Boundary) -> None:
        self.model.add(self.makespan >= self._ticks(boundary.direct_ms))
        for k in range(len(self.starts)):
            entry, leave = (
                sum(self._ticks(ms) * self.kind[k][kind] for kind, ms in enumerate(table[k]) if ms)
                for table in (boundary.entry_ms, boundary.exit_ms)
            )
            self.model.add(self.starts[k] >= entry)
            self.model.add(self.makespan >= self.ends[k] + leave)

    def _edges(self) -> None:
        for k, step in enumerate(self.costs.steps):
            for i in step.inputs:
                delays = [[self._ticks(ms) for ms in row] for row in self.costs.delays_ms[i]]
                self.model.add(self.starts[k] >= self.ends[i])
                levels = {ms for row in delays for ms in row if ms}
                for ms in levels:
                    # Not exceeded from this kind: linear in both, since one kind of each is chosen.
                    for kind in _KINDS:
                        readers = [b for b in _KINDS if delays[kind][b] == ms]
                        if readers:
                            both = self.kind[i][kind] + sum(self.kind[k][b] for b in readers)
                            self.model.add(self.starts[k] >= self.ends[i] + ms * (both - 1))

    def _loads(self, boundary: Boundary, limit: int) -> None:
        least = [min(row[o.kind] for o in s.options) for s, row in zip(self.costs.steps, boundary.entry_ms, strict=True)]
        before = self._ticks(min(least, default=0.0))
        for side in (CPU, GPU):
            load = sum(
                self._ticks(self.costs.weighed_ms(o, step.load)[side]) * var
                for step, x in zip(self.costs.steps, self.chosen, strict=True)
                for o, var in zip(step.options, x, strict=True)
            )
            self.model.add(self.makespan >= before + load)
        if self.costs.disturbed:
            self._overlaps(limit, before)

    def _overlaps(self, limit: int, before: int) -> None:
        """Have the makespan pay for contention: see the module's text. What rounding may take is added where it matters."""
        loads = sorted({step.load for step in self.costs.steps})
        pairs = {(p, q): (self.costs.contention or {}).get((p, q), (1.0, 1.0)) for p in loads for q in loads}
        overlap = {pair: self.model.new_int_var(0, limit, "") for pair in pairs}
        work: list[dict[str, Any]] = [dict.fromkeys(loads, 0) for _ in (CPU, GPU)]
        split: Any = 0
        for step, x in zip(self.costs.steps, self.chosen, strict=True):
            for o, var in zip(step.options, x, strict=True):
                for side, busy in ((CPU, o.cpu_ms), (GPU, o.gpu_ms)):
                    work[side][step.load] += self._ticks(busy) * var
                if o.cpu_ms > 0 and o.gpu_ms > 0:
                    split += (self._ticks(min(o.cpu_ms, o.gpu_ms)) + 1) * var
        room = _SCALE * (self.makespan - before + 1)
        busy_for = [
            _SCALE * sum(work[side].values())
            + sum(math.floor(_SCALE * (1 - 1 / pairs[pair][side])) * var for pair, var in overlap.items())
            for side in (CPU, GPU)
        ]
        for side in (CPU, GPU):
            self.model.add(busy_for[side] <= room)
        twice = sum(overlap.values()) + split + len(overlap)
        self.model.add(sum(busy_for) - _SCALE * twice <= room)
        for load in loads:
            for side in (CPU, GPU):
                own = {pair: var for pair, var in overlap.items() if pair[side] == load}
                done = sum(math.floor(_SCALE / pairs[pair][side]) * var for pair, var in own.items())
                self.model.add(done <= _SCALE * (work[side][load] + len(self.costs.steps)))

    def hint(self, schedule: OptionSchedule) -> None:
        """Begin with a schedule's choice of options."""
        for x, chosen in zip(self.chosen, schedule.choice, strict=True):
            for position, var in enumerate(x):
                self.model.add_hint(var, position == chosen)

    def solve(self, gap: float, seconds: float) -> Solution:
        found = self.cp.CpSolver()
        found.parameters.max_time_in_seconds = max(seconds, 0.01)
        found.parameters.relative_gap_limit = gap
        found.parameters.random_seed = 0
        status = found.solve(self.model)
        bound_ms = max(found.best_objective_bound, 0.0) * self.tick
        if status not in {self.cp.OPTIMAL, self.cp.FEASIBLE}:
            return Solution(bound_ms, None)
        choice = tuple(next(p for p, var in enumerate(x) if found.value(var)) for x in self.chosen)
        starts = [found.value(start) for start in self.starts]
        return Solution(bound_ms, OptionSchedule(choice, queues_by(self.costs, choice, starts)))
