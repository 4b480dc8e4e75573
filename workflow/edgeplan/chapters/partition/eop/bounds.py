"""How far our plans of measured costs may be from the best ones: planned anew from stored sweeps, with no device.

Sweeps are measured once; planners get better. So the gap that is shown is not the one that a plan had when it was measured.
"""

from __future__ import annotations

import time

import pandas as pd

from edgeplan.chapters.partition.eop.ways import BESIDE, OURS
from edgeplan.planning.partition.costs import SPLIT, PairCosts
from edgeplan.planning.partition.fitted import fitted
from edgeplan.planning.partition.modules import cuts, modules
from edgeplan.planning.partition.parallel import SearchLimits
from edgeplan.planning.partition.planner import outcome
from edgeplan.support.cpus import workers

#: Columns of the rows.
BOUNDS = ("way", "predicted_ms", "splits", "plan_seconds", "plan_gap", "subgraphs")


def bounds(costs: PairCosts, processor_seconds: float) -> pd.DataFrame:
    """Plan in sequence and side by side: a row of each, with the columns `BOUNDS`.

    Args:
        costs: of a model, as measured.
        processor_seconds: of the search for plans side by side, on all cores together. Beside other work it has fewer, since
            it ends when that time would have passed on free cores.
    """
    smooth, rows, subgraphs = fitted(costs), [], float(subgraphs_of(costs))
    for name, mode in ((OURS, "sequential"), (BESIDE, "parallel")):
        began = time.process_time()
        found = outcome(smooth, mode, SearchLimits(time_limit_s=processor_seconds / workers()))
        makespan_ms, bound_ms = found.timeline.makespan_ms, found.lower_bound_ms
        splits = sum(option.kind == SPLIT for option in found.costs.chosen(found.schedule.choice))
        gap = makespan_ms / bound_ms - 1 if bound_ms > 0 else 0.0
        rows.append([name, makespan_ms, float(splits), time.process_time() - began, gap, subgraphs])
    return pd.DataFrame(rows, columns=list(BOUNDS))


def subgraphs_of(costs: PairCosts) -> int:
    """Count the subgraphs that follow each other: steps that cut the model in time, and the branches between two of them."""
    at = cuts(costs)
    return len(at) + sum(bool(module.steps) for module in modules(costs, at))
