"""Bounds say how far our plans of measured costs may be from the best ones: planned anew from stored sweeps, with no device.

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
from edgeplan.planning.partition.planner import PartitionOutcome, outcome
from edgeplan.support.cpus import workers

#: Columns of the rows.
BOUNDS = ("way", "predicted_ms", "splits", "plan_seconds", "plan_gap", "subgraphs")
#: As much of the processor's time is all of it, and a search takes at most so many times that by the clock.
_NEARLY, _LONGEST = 0.8, 3.0


def bounds(costs: PairCosts, processor_seconds: float) -> pd.DataFrame:
    """Plan in sequence and side by side: a row of each, with the columns `BOUNDS`.

    Args:
        costs: of a model, as measured.
        processor_seconds: of the search for plans side by side, on all cores together.
    """
    smooth, rows, subgraphs = fitted(costs), [], float(subgraphs_of(costs))
    for name, mode in ((OURS, "sequential"), (BESIDE, "parallel")):
        found, seconds = _planned(smooth, mode, processor_seconds)
        makespan_ms, bound_ms = found.timeline.makespan_ms, found.lower_bound_ms
        splits = sum(option.kind == SPLIT for option in found.costs.chosen(found.schedule.choice))
        gap = makespan_ms / bound_ms - 1 if bound_ms > 0 else 0.0
        rows.append([name, makespan_ms, float(splits), seconds, gap, subgraphs])
    return pd.DataFrame(rows, columns=list(BOUNDS))


def _planned(costs: PairCosts, mode: str, processor_seconds: float) -> tuple[PartitionOutcome, float]:
    """Plan within a time of the processor, and tell how much of it that took.

    The search is limited by the clock. Beside other work it gets less of the processor than that: then it is made again, with
    as much longer as that work takes.
    """
    limit_s, most_s = processor_seconds / workers(), _LONGEST * processor_seconds
    while True:
        began = time.process_time()
        search = SearchLimits(time_limit_s=limit_s)
        found, taken = outcome(costs, mode, search), time.process_time() - began
        proven = found.timeline.makespan_ms <= found.lower_bound_ms * (1 + search.gap)
        if proven or taken >= _NEARLY * processor_seconds or limit_s >= most_s:
            return found, taken
        limit_s = min(limit_s * max(processor_seconds / taken, 2 * _NEARLY), most_s)


def subgraphs_of(costs: PairCosts) -> int:
    """Count the subgraphs that follow each other: steps that cut the model in time, and the branches between two of them."""
    at = cuts(costs)
    return len(at) + sum(bool(module.steps) for module in modules(costs, at))
