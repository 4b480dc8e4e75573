"""The lines that `edgeplan run` prints of a plan of a pair."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from edgeplan.chapters.partition.planned import as_it_ran, pair_plan
from edgeplan.reporting.partition_gantt import text_lines
from edgeplan.runtime.partitioned.document import PairSchedule
from edgeplan.terminal import escaped

if TYPE_CHECKING:
    from edgeplan.runs import Run


def run_lines(found: Run) -> list[str]:
    """Show the times of a run beside the plan's, and both as pictures."""
    plan, times = pair_plan(found.plan), found.warm_ms
    split = sum(step.on == "split" for step in plan.steps)
    middle = f" (median of {len(times)}, least {min(times):.3f})" if len(times) > 1 else ""
    waits = found.plan.scheduled(PairSchedule).synchronisation
    return [
        f"{escaped(plan.model)}: {len(plan.steps)} operators, {split} split; waits by {waits}",
        f"{statistics.median(times):.3f} ms{middle}, predicted {plan.makespan_ms:.3f} ms",
        "planned",
        *text_lines(plan),
        "last run",
        *text_lines(as_it_ran(plan, found.spans_ms)),
    ]
