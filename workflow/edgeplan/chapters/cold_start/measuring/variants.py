"""Lists the plans of the chapter: which are made, and how a plan document relates to its profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pandas as pd

from edgeplan.chapters.cold_start.planners.registry import Options, plan
from edgeplan.planning.document import Plan, Target, plan_of, plan_text
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile
from edgeplan.profiling.frame import to_frame
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of
from edgeplan.support.table_store import TableStore

#: Of kept plans: the document is JSON.
PLAN_COLUMNS = ("document",)


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """Describes a plan that is executed.

    Attributes:
        planner: a name in `planners.registry.PLANNERS`.
        costs: where its costs come from.
        uneven: whether it is for one big and one little core, the little one stood for by waiting.
        continuous: whether it has the kernels for later runs beside it (section 3.5).
        disk: whether its weights come from the disk.
    """

    planner: str
    costs: Literal["profiled", "predicted"] = "profiled"
    uneven: bool = False
    continuous: bool = False
    disk: bool = False


#: Plans by the name that they have in tables and in params.yaml.
VARIANTS: Mapping[str, PlanVariant] = MappingProxyType(
    {
        "optimal": PlanVariant("optimal"),
        "evicted": PlanVariant("evicted", disk=True),
        "nnv12": PlanVariant("nnv12"),
        "warm": PlanVariant("warm"),
        "K": PlanVariant("K"),
        "K+C": PlanVariant("K+C"),
        "predicted": PlanVariant("optimal", costs="predicted"),
        "continuous": PlanVariant("optimal", continuous=True),
        "asymmetric": PlanVariant("optimal", uneven=True),
        "asymmetric-nnv12": PlanVariant("nnv12", uneven=True),
    }
)


def on_cores(profiles: Sequence[Profile], threads: int) -> tuple[Profile, ...]:
    """Return the profiles for fewer equal cores than they were measured on; none where that width was not measured."""
    narrowed = tuple(replace(p, big_cores=threads) for p in profiles)
    return narrowed if all(threads in p.layers[0].candidates[0].execute_ms for p in profiles) else ()


def uneven(profiles: Sequence[Profile], little_ratio: float) -> tuple[Profile, ...]:
    """Return the profiles on one big and one little core, on which a preparation takes `little_ratio` times as long."""
    return tuple(replace(p, big_cores=1, little_cores=1, little_ratio=little_ratio) for p in profiles)


def planned_once(
    plans: TableStore,
    search: Search,
    name: str,
    profiles: Sequence[Profile],
    target: Target,
    disk: Disk | None = None,
) -> Plan:
    """Plan a variant, once: plans decide which runs count, and a search with a time limit may end differently.

    Args:
        plans: plans made before, with `PLAN_COLUMNS`.
        search: limits of the optimal planner.
        name: name of the variant in `VARIANTS`.
        profiles: of one model, one a home layout, on the cores that the variant is for.
        target: model, library and machine that the plan is for.
        disk: the disk that weights come from, for the variant that asks for it.
    """
    variant = VARIANTS[name]
    costs = to_frame(profiles).to_json(orient="split", double_precision=12)
    come = [disk.mb_per_s, disk.latency_ms] if disk is not None else None
    # False: that nothing is measured while planning, as the keys of all stored plans say
    parts: list[object] = [variant.planner, come, variant.costs, False, (search.gap, search.time_limit_s), costs]
    parts += [{field: getattr(target, field) for field in target.__slots__}, protocol("plan").name]
    key = f"{Path(target.model).stem}-{name}-{target.threads}-{key_of(parts)}"
    if (found := plans.get(key)) is not None:
        return plan_of(found["document"].iloc[0], key)
    options = Options(search=search, disk=disk)
    made = plan(profiles, variant.planner, target, costs=variant.costs, options=options)
    plans.commit({key: pd.DataFrame({"document": [plan_text(made)]})})
    return made


_COPIED: tuple[str, ...] = (
    *("threads", "little_ratio", "planner", "costs", "layout", "widen_from", "makespan_ms", "lower_bound_ms", "gap"),
    *("planning_ms", "read_bytes", "cache_bytes", "note"),
)


def plan_row(model: str, name: str, made: Plan) -> dict[str, Any]:
    """Return a plan as a row of `plans.parquet`."""
    row = {field: getattr(made, field) for field in _COPIED}
    return {"model": model, "plan": name, "steps": len(made.steps), **row, "document": plan_text(made)}
