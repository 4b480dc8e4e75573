"""Plans a partition, and writes down what is known about the plan.

Plans use the admitted options only (`margin`). The plans of each single processor are always candidates, so that none is slower
than the better of them under the costs.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.planning.partition.costs import (
    CPU,
    GPU,
    KINDS,
    SPLIT,
    Choice,
    Option,
    PairCosts,
    PairStep,
    PairTimeline,
    better_single,
    equal,
    fixed,
    greedy,
    in_sequence,
    single,
)
from edgeplan.planning.partition.eop import eop
from edgeplan.support.files import write_text

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
_ROUGH = 1e-6
PROVEN_GAP = 1e-4  # of what is called optimal: sums of the same times differ by their order


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlannedStep(_Part):
    """Where and when an operator runs: `option` is its position among the options in the cost document.

    A processor without a part ends when the step starts. `whole_because` says why it is not split, "" if it is.
    """

    name: Name
    on: Literal["cpu", "gpu", "split"]
    option: Count
    cpu_share: Share
    dimension: str = ""
    implementation: str = ""
    start_ms: Milliseconds
    cpu_end_ms: Milliseconds
    gpu_end_ms: Milliseconds
    whole_because: str = ""


class PartitionPlan(_Part):
    """A plan of a partition: which processor runs each operator, in the order of the model; the CPU's name stands first.

    No plan with the admitted options beats the bound; a split is admitted where its predicted gain exceeds the error.
    """

    format_version: Literal[1] = 1
    model: Name
    costs_sha256: str
    processors: tuple[Name, Name]
    steps: Annotated[tuple[PlannedStep, ...], Field(min_length=1)]
    makespan_ms: Milliseconds
    lower_bound_ms: Milliseconds
    better_single: Literal["cpu", "gpu"]
    better_single_ms: Milliseconds
    admitted_splits: Count
    planning_ms: Milliseconds

    @model_validator(mode="after")
    def _consistent(self) -> PartitionPlan:
        slack = _ROUGH * max(self.makespan_ms, 1.0)
        if self.makespan_ms < self.lower_bound_ms - slack:
            raise ValueError("makespan_ms: below lower_bound_ms")
        if self.makespan_ms > self.better_single_ms + slack:
            raise ValueError("makespan_ms: above better_single_ms")
        return self

    @property
    def gap(self) -> float:
        """Relative distance of the makespan to the bound."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else float(self.makespan_ms > 0)

    @property
    def splits(self) -> int:
        """Return the number of steps that are split."""
        return sum(step.on == "split" for step in self.steps)

    @property
    def optimal(self) -> bool:
        """Tell whether no plan is faster, by more than sums round."""
        return self.gap <= PROVEN_GAP


def write_partition_plan(plan: PartitionPlan, path: Path) -> None:
    """Write a partition plan to a file, atomically."""
    write_text(path, plan.model_dump_json(indent=1) + "\n")


def partition_document(plan: PartitionPlan) -> dict[str, object]:
    """Return a plan as `--json` prints it, with what follows from it."""
    content: dict[str, object] = json.loads(plan.model_dump_json())
    return {**content, "gap": plan.gap, "optimal": plan.optimal}


def admitted(costs: PairCosts) -> PairCosts:
    """Return the same costs with the options that a plan may use."""
    return replace(costs, steps=tuple(replace(s, options=_admitted(s)) for s in costs.steps))


def _admitted(step: PairStep) -> tuple[Option, ...]:
    whole = [o for o in (step.best(kind) for kind in range(SPLIT)) if o is not None]
    limit_ms = step.best_whole.span_ms * (1 - step.error)
    splits = [o for o in step.options if o.kind == SPLIT and o.span_ms < limit_ms]
    splits.sort(key=lambda o: (o.cpu_ms, o.gpu_ms))
    kept: list[Option] = []
    for option in splits:
        if not kept or option.gpu_ms < kept[-1].gpu_ms:
            kept.append(option)
    return (*whole, *kept)


def why_whole(costs: PairCosts, admitted_costs: PairCosts, choice: Choice) -> list[str]:
    """For each step why it is not split, "" for those that are. The choice is among the options that `admitted` left."""
    chosen = admitted_costs.chosen(choice)
    reasons = []
    for k, option in enumerate(chosen):
        if option.kind == SPLIT:
            reasons.append("")
        elif reason := _never(costs.steps[k], admitted_costs.steps[k]):
            reasons.append(reason)
        else:
            reasons.append(_not_here(admitted_costs, chosen, k))
    return reasons


def _never(step: PairStep, kept: PairStep) -> str:
    """Why no split of a step is admitted, "" if one is."""
    if any(o.kind == SPLIT for o in kept.options):
        return ""
    split = step.best(SPLIT)
    if split is None:
        return step.unsplittable or "it has no split"
    whole = step.best_whole
    gain = whole.span_ms - split.span_ms
    if gain <= 0:
        return f"no split is faster: {split.text()} takes {split.span_ms:.4g} ms, {whole.text()} {whole.span_ms:.4g} ms"
    error = step.error * whole.span_ms
    return f"the gain of its best split ({split.text()}), {gain:.4g} ms, is within the error of {error:.4g} ms"


def _not_here(costs: PairCosts, chosen: Sequence[Option], k: int) -> str:
    """Return what splitting would add where an admitted split is not chosen."""
    split = costs.steps[k].best(SPLIT)
    assert split is not None  # noqa: S101  `_never` looked
    here = _with_hand_overs(costs, chosen, k, split) - _with_hand_overs(costs, chosen, k, chosen[k])
    if here > 0:
        return f"with its hand-overs {split.text()} takes {here:.4g} ms longer here"
    return "the whole plan is faster so"


def _with_hand_overs(costs: PairCosts, chosen: Sequence[Option], k: int, option: Option) -> float:
    before = max((costs.delay_ms(i, chosen[i].kind, option.kind) for i in costs.steps[k].inputs), default=0.0)
    behind = max((costs.delay_ms(k, option.kind, chosen[r].kind) for r in costs.readers[k]), default=0.0)
    return option.span_ms + before + behind


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


def sequential_plan(costs: PairCosts) -> InSequence:
    """Plan one step at a time, in their order."""
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


_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """An outcome is a planned partition, with its bound."""

    costs: PairCosts
    choice: Choice
    timeline: PairTimeline
    lower_bound_ms: float


#: Plans to compare with, from all options, admitted or not.
BASELINES: dict[str, Callable[[PairCosts], Choice]] = {
    "all on the CPU": lambda costs: single(costs, CPU),
    "all on the GPU": lambda costs: single(costs, GPU),
    "equal": equal,
    "fixed": fixed,
    "greedy": greedy,
    "EOP": lambda costs: eop(costs).choice,
    "EOP as drawn": lambda costs: eop(costs, overlapped=True).choice,
}


def outcome(costs: PairCosts) -> PartitionOutcome:
    """Plan a partition; of equally fast plans a single processor's is taken."""
    kept = admitted(costs)
    found = sequential_plan(kept)
    best, *others = (single(kept, CPU), single(kept, GPU), found.choice)
    timeline = in_sequence(kept, best)
    for choice in others:
        other = in_sequence(kept, choice)
        if other.makespan_ms < timeline.makespan_ms * (1 - _SAME):
            best, timeline = choice, other
    return PartitionOutcome(kept, best, timeline, min(found.lower_bound_ms, timeline.makespan_ms))


def plan(costs: PairCosts) -> PartitionPlan:
    """Plan a partition; write down its steps, and why those that are whole are not split."""
    started = time.monotonic()
    found = outcome(costs)
    reasons = why_whole(costs, found.costs, found.choice)
    steps = []
    for step, option, span, reason in zip(
        costs.steps, found.costs.chosen(found.choice), found.timeline.spans, reasons, strict=True
    ):
        planned = PlannedStep(
            name=step.name,
            on=KINDS[option.kind],  # type: ignore[arg-type]
            option=option.index,
            cpu_share=option.cpu_share,
            dimension=option.dimension,
            implementation=option.implementation,
            start_ms=span.start_ms,
            cpu_end_ms=span.cpu_end_ms,
            gpu_end_ms=span.gpu_end_ms,
            whole_because=reason,
        )
        steps.append(planned)
    better, better_ms = better_single(costs)
    return PartitionPlan(
        model=costs.model,
        costs_sha256=costs.sha256,
        processors=costs.names,
        steps=tuple(steps),
        makespan_ms=found.timeline.makespan_ms,
        lower_bound_ms=found.lower_bound_ms,
        better_single=better,  # type: ignore[arg-type]
        better_single_ms=better_ms,
        admitted_splits=sum(any(o.kind == SPLIT for o in s.options) for s in found.costs.steps),
        planning_ms=(time.monotonic() - started) * 1e3,
    )


def compared(costs: PairCosts) -> dict[str, float]:
    """Return makespans of the plans to compare with, by name."""
    return {name: in_sequence(costs, choose(costs)).makespan_ms for name, choose in BASELINES.items()}
