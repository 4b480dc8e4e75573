"""Tabulates what bounds cold starts, in each state of the page cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, EVICTED, EVICTED_PLAN, OPTIMAL, OWN, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.tables_stages import STAGES, stage_medians
from edgeplan.planning.bounds import fewest_read_bytes
from edgeplan.reporting.kit import NotMeasuredError

_SHARING, _UNPLANNED = "sharing the cores", "slower than planned"


def bounds(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate what bounds a cold start, disk or work, and the largest parts of the work."""
    works, evicted = metrics.work_bound_ms(e, CACHED), metrics.evicted_bound_ms(e)
    streamed = metrics.work_bound_ms(e, EVICTED)
    if works.empty:
        raise NotMeasuredError("no model was profiled")
    parts = {state: metrics.own_cold(e.runs, state) for state in (CACHED, EVICTED)}
    own = {state: part["cold_ms"] for state, part in parts.items()}
    warm = metrics.own_warm(e.runs, e.threads)
    optimal = metrics.own_warm(e.runs, e.threads, OPTIMAL)
    fewest = metrics.fewest_runs(*parts.values(), warm, optimal)
    planned = _planned(e)
    slow = metrics.slowness(e.runs, CACHED)
    rows = []
    for model in [m for m in e.names if m in e.profiled]:
        proven = planned["lower_bound_ms"].get(model, np.nan) * slow.get(model, np.nan)
        shares = _parts(e, model, planned)
        work, read = works.get(model, np.nan), e.read_bound_ms.get(model, np.nan)
        speed = e.threads / slow.get(model, np.nan)  # of the profiles, in core-time
        excess = _excess(shares, work * speed, own[CACHED].get(model, np.nan) * speed)
        rows.append(
            {
                "model": model,
                "slowness": slow.get(model, np.nan),
                "work_bound_ms": work,
                "proven_bound_ms": proven,
                "cached_ms": own[CACHED].get(model, np.nan),
                "cached_over_work": own[CACHED].get(model, np.nan) / work,
                "cached_over_proven": own[CACHED].get(model, np.nan) / proven,
                "proven_over_work": proven / work,
                "beyond_work": max(excess, key=lambda name: np.nan_to_num(excess[name])) if excess else "",
                "disk_bound_ms": read,
                "evicted_bounded_by": _larger(read, streamed.get(model, work)),
                "evicted_ms": own[EVICTED].get(model, np.nan),
                "evicted_over_bound": own[EVICTED].get(model, np.nan) / evicted.get(model, np.nan),
                "warm_ms": warm["warm_ms"].get(model, np.nan),
                "warm_optimal_ms": optimal["warm_ms"].get(model, np.nan),
                "runs": fewest.get(model, np.nan),
                **{f"{name}_core_ms": time for name, time in shares.items()},
                "sharing_excess_ms": excess.get(_SHARING, np.nan),
                "unplanned_excess_ms": excess.get(_UNPLANNED, np.nan),
            }
        )
    return pd.DataFrame(rows)


def _planned(e: ColdEvidence) -> pd.DataFrame:
    """Return the rows of the optimal plans on all cores, by model."""
    plans = e.plans[(e.plans["plan"] == OPTIMAL) & (e.plans["threads"] == e.threads)]
    return plans.drop_duplicates("model").set_index("model")


def _excess(parts: Mapping[str, float], work: float, measured: float) -> dict[str, float]:
    """Split the time of a start beyond its work bound by reason (core-ms at the speed of the profiles).

    Creation and execution are in the bound, as the least of any candidate on a free core.

    Args:
        parts: of the optimal plan, its makespan on all cores together.
        work: bound.
        measured: start, on all cores.
    """
    if np.isnan(parts["start"]) or np.isnan(work):
        return {}
    makespan = float(np.nansum(list(parts.values())))
    return {
        "opening the plan": parts["start"],
        _SHARING: makespan - parts["start"] - parts["idle"] - work,
        "one core's work": parts["idle"],
        _UNPLANNED: measured - makespan,
    }


def _larger(read: float, work: float) -> str:
    return "disk" if read > work else "work"


def bounds_evicted(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate bytes, disk and work of starts with the page cache evicted, beside what was planned and measured."""
    works, own = metrics.work_bound_ms(e, EVICTED), metrics.own_cold(e.runs, EVICTED)
    if own.empty or works.empty:
        raise NotMeasuredError("no model was profiled and started with the page cache evicted")
    plans = e.plans[e.plans["costs"] == "profiled"].set_index(["model", "plan", "threads"])
    rows = []
    for model in [m for m in e.names if m in e.profiled and m in own.index]:
        start: dict[Any, Any] = own.loc[model].to_dict()
        place = (model, start["plan"], start["threads"])
        planned = place in plans.index and start["plan"] == EVICTED_PLAN  # other plans know nothing of the disk
        work, read = works.get(model, np.nan), e.read_bound_ms.get(model, np.nan)
        bound, proven = np.fmax(read, work), plans["lower_bound_ms"][place] if planned else np.nan
        needed = min(map(fewest_read_bytes, e.profiled[model]))
        stages = stage_medians(e, model, OWN, start["plan"], start["threads"], EVICTED)
        rows.append(
            {
                "model": model,
                "plan": start["plan"],
                "threads": start["threads"],
                "needed_mb": needed / 1e6,
                "probed_mb_per_s": needed / 1e3 / read,
                "disk_bound_ms": read,
                "work_bound_ms": work,
                "bounded_by": _larger(read, work),
                "planned_bound_ms": proven,
                "planned_ms": plans["makespan_ms"][place] if planned else np.nan,
                "evicted_ms": start["cold_ms"],
                "evicted_over_bound": start["cold_ms"] / bound,
                "evicted_over_planned_bound": start["cold_ms"] / proven,
                "planned_bound_over_bound": proven / bound,
                "needed_mb_per_s": needed / 1e3 / start["cold_ms"],
                "runs": start["repeats"],
                **{f"{stage}_core_ms": stages.get(stage, np.nan) for stage in STAGES},
            }
        )
    return pd.DataFrame(rows)


def _parts(e: ColdEvidence, model: str, planned: pd.DataFrame) -> dict[str, float]:
    """Return how the cores' time is spent in the optimal plan (core-ms): stages, what comes before and after, and idling.

    A core idles where the others wait for one core's work: the execution while it is narrow, or a preparation.
    """
    chosen = e.spans[(e.spans["model"] == model) & (e.spans["kind"] == "planned") & (e.spans["plan"] == OPTIMAL)]
    spent = (chosen["end_ms"] - chosen["start_ms"]).groupby(chosen["stage"]).sum()
    parts = {stage: float(spent.get(stage, np.nan)) for stage in ("read", "create", "transform", "execute")}
    if model not in planned.index:
        return parts | {"start": np.nan, "idle": np.nan}
    made: dict[Any, Any] = planned.loc[model].to_dict()
    start = next((p.start_ms for p in e.profiled[model] if p.layout == made["layout"]), np.nan)
    busy = float(np.nansum(list(parts.values())))
    idle = max(0.0, (made["makespan_ms"] - start) * e.threads - busy)
    return parts | {"start": start * e.threads, "idle": idle}
