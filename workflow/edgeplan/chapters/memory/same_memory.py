"""Our plans in as much memory as others take: engines that keep all weights, and whole layers loaded when they are needed.

The paper's third baseline loads a layer once the one before has ended and keeps nothing: no cutting, no loading ahead.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from edgeplan.chapters.memory.bench import ModelBench
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.costed import all_bytes
from edgeplan.errors import EdgeplanError, InfeasibleError, UndecidedError
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import run_apart

#: The paper's other baselines.
BESIDE = ("ncnn", "ncnn-direct")
ON_DEMAND = "on demand"
_STEPS = 16  # from the least memory of whole layers up, to find a layout
_SLACK_BYTES = MIB


def same_memory(bench: ModelBench, beside: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Whole layers on demand, and our plan in as much memory as these and as some engines take.

    `median_ms` is ours, `full_ms` theirs, `budget` the memory of both.

    Args:
        bench: the model.
        beside: settings of stock engines.
    """
    demand = _on_demand(bench)
    theirs = {name: bench.stock[name] for name in beside if name in bench.stock}
    if "peak" not in demand:
        yield {"case": "same", "setting": ON_DEMAND} | demand
    else:
        theirs[ON_DEMAND] = demand
    all_in_memory = all_bytes(bench.planner.candidate(bench.planner.forms[0])) + _SLACK_BYTES
    measured: dict[int, dict[str, Any]] = {}
    for setting, row in theirs.items():
        budget = min(int(row["peak"]), all_in_memory)
        if budget not in measured:
            measured[budget] = _own(bench, budget)
        yield {"case": "same", "setting": setting, "budget": row["peak"], "full_ms": row["median_ms"]} | measured[budget]


def _own(bench: ModelBench, budget: int) -> dict[str, Any]:
    try:
        made = bench.plan(budget)
        settings = bench.planner.settings(bench.subject.settings.runs)
        found = run_apart(made.folder, [made.document.model_dump()], settings)
    except EdgeplanError as error:
        return {"reason": error.what.splitlines()[0]}
    return {"peak": found.peak_over_idle, "median_ms": statistics.median(found.phases[0].run_ms[1:])}


def _on_demand(bench: ModelBench) -> dict[str, Any]:
    """Run whole layers in the least arena that they have a plan for, each loaded when it is needed."""
    planner = bench.planner
    candidate = planner.candidate(planner.forms[0])
    least = candidate.least_bytes()
    for step in range(_STEPS):
        try:
            made = candidate.planned(least + step * max(MIB // 4, least // 100), Mode.back_to_back)
        except (InfeasibleError, UndecidedError):
            continue
        schedule = when_needed(planner.documented(candidate, made))
        settings = planner.settings(bench.subject.settings.runs)
        found = run_apart(candidate.folder, [schedule], settings)
        return {"peak": found.peak_over_idle, "median_ms": statistics.median(found.phases[0].run_ms[1:])}
    return {"reason": "no layout was found near the least memory of whole layers"}


def when_needed(plan: MemoryPlan) -> dict[str, Any]:
    """The schedule of a plan that keeps no weights and loads none ahead, those of the first step at the end of the last."""
    last = len(plan.steps) - 1
    loads = [offset >= 0 for offset in plan.weight_offset]
    after = [k - 1 if load else -1 for k, load in enumerate(loads)]
    return plan.model_dump() | {"after": after, "again": [last if load and not k else -1 for k, load in enumerate(loads)]}
