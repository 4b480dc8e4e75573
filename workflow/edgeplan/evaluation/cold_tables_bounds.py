"""Tables of what bounds cold starts, and of plans for each state of the page cache."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.evaluation import cold_metrics as metrics
from edgeplan.evaluation.cold_evidence import CACHED, EVICTED, EVICTED_PLAN, OPTIMAL, ColdEvidence
from edgeplan.evaluation.cold_tables_stages import NotMeasuredError


def bounds(e: ColdEvidence) -> pd.DataFrame:
    """What bounds a cold start: disk or work; and the largest parts of the work."""
    works, evicted = metrics.work_bound_ms(e, CACHED), metrics.evicted_bound_ms(e)
    if works.empty:
        raise NotMeasuredError("no model was profiled")
    parts = {state: metrics.own_cold(e.runs, state) for state in (CACHED, EVICTED)}
    own = {state: part["cold_ms"] for state, part in parts.items()}
    warm = metrics.warm(e.runs, e.threads, stock=False)
    optimal = metrics.warm_optimal(e.runs, e.threads)
    fewest = metrics.fewest_runs(*parts.values(), warm, optimal)
    rows = []
    for model in [m for m in e.names if m in e.profiled]:
        work, read = works.get(model, np.nan), e.read_bound_ms.get(model, np.nan)
        rows.append(
            {
                "model": model,
                "work_bound_ms": work,
                "disk_bound_ms": read,
                "bounded_by": "disk" if read > work else "work",
                "cached_ms": own[CACHED].get(model, np.nan),
                "cached_over_work": own[CACHED].get(model, np.nan) / work,
                "evicted_ms": own[EVICTED].get(model, np.nan),
                "evicted_over_bound": own[EVICTED].get(model, np.nan) / evicted.get(model, np.nan),
                "warm_ms": warm["warm_ms"].get(model, np.nan),
                "warm_plan": warm["plan"].get(model, ""),
                "warm_optimal_ms": optimal["warm_ms"].get(model, np.nan),
                "runs": fewest.get(model, np.nan),
                **_parts(e, model),
            }
        )
    return pd.DataFrame(rows)


def _parts(e: ColdEvidence, model: str) -> dict[str, float]:
    """The stages of the optimal plan's candidates, summed (core-ms): what the cores are busy with."""
    chosen = e.spans[(e.spans["model"] == model) & (e.spans["kind"] == "planned") & (e.spans["plan"] == OPTIMAL)]
    spent = (chosen["end_ms"] - chosen["start_ms"]).groupby(chosen["stage"]).sum()
    return {f"{stage}_core_ms": float(spent.get(stage, np.nan)) for stage in ("read", "create", "transform", "execute")}


def states(e: ColdEvidence) -> pd.DataFrame:
    """Plans for weights in memory and for weights on the disk, each started in both states."""
    found = e.plans[e.plans["plan"] == EVICTED_PLAN]
    if found.empty:
        raise NotMeasuredError(e.notes.get("disk", "no plan for an evicted page cache was made"))
    warm = e.plans[e.plans["plan"] == OPTIMAL].set_index(["model", "threads"])
    cold = metrics.own(metrics.medians(e.runs)).set_index(["model", "threads", "plan", "state"]).sort_index()
    rows = []
    for plan in found.to_dict("records"):
        model, threads = plan["model"], plan["threads"]
        cells = {
            (name, state): cold["cold_ms"].get((model, threads, name, state), np.nan)
            for name in (OPTIMAL, EVICTED_PLAN)
            for state in (EVICTED, CACHED)
        }
        rows.append(
            {
                "model": model,
                "threads": threads,
                "widen_from": warm["widen_from"].get((model, threads), np.nan),
                "widen_from_evicted": plan["widen_from"],
                "predicted_evicted_ms": plan["makespan_ms"],
                "gap_percent": 100 * (plan["makespan_ms"] / plan["lower_bound_ms"] - 1),
                "planning_s": plan["planning_ms"] / 1e3,
                **{f"{name}_{state}_ms": time for (name, state), time in cells.items()},
                "evicted_gain": cells[OPTIMAL, EVICTED] / cells[EVICTED_PLAN, EVICTED],
                "cached_gain": cells[OPTIMAL, CACHED] / cells[EVICTED_PLAN, CACHED],
                "runs": min(
                    (cold["repeats"][model, threads, *cell] for cell, time in cells.items() if time > 0), default=np.nan
                ),
            }
        )
    return pd.DataFrame(rows)
