"""Registers the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation import tables_continuous as continuous
from edgeplan.chapters.cold_start.evaluation import tables_runs as runs
from edgeplan.chapters.cold_start.evaluation import tables_stages as stages
from edgeplan.chapters.cold_start.evaluation.evidence import OPTIMAL, TABLE2_CONV, ColdEvidence
from edgeplan.planning.profile import BIG, Candidate
from edgeplan.reporting.kit import NotMeasuredError, TableSpec, registry
from edgeplan.zoo.cold_start_models import TABLE4

_MB = 1e6


def table_02(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate kernel alternatives of one convolution, 3x3, stride 1, 64 to 192 channels: what each stage takes (ms).

    Rows that differ in nothing but the home layout are one: equal steps share their samples.
    """
    profiles = e.profiled.get(TABLE2_CONV, ())
    rows = []
    for profile in profiles:
        # the convolution is the step with most candidates: reshapes at the border have one
        layer = max(profile.layers, key=lambda layer: len(layer.candidates))
        by_kernel: dict[str, dict[str, Candidate]] = {}
        for c in layer.candidates:
            by_kernel.setdefault(c.implementation, {})[c.source] = c
        for kernel, sources in by_kernel.items():
            raw, read, mapped = (sources.get(s) for s in ("raw", "cached_read", "cached_mmap"))
            known = next(iter(sources.values()))
            most = max(known.execute_ms)
            rows.append(
                {
                    "kernel": kernel,
                    "layout": profile.layout,
                    "read_raw_ms": raw.read_ms[BIG] if raw else np.nan,
                    "transform_ms": raw.transform_ms[BIG] if raw else np.nan,
                    "read_cache_ms": read.read_ms[BIG] if read else np.nan,
                    "map_cache_ms": mapped.read_ms[BIG] if mapped else np.nan,
                    "create_ms": known.create_ms[BIG],
                    "execute_1_core_ms": known.execute_ms[min(known.execute_ms)],
                    f"execute_{most}_cores_ms": np.nan if quick_look_only(known) else known.execute_ms[most],
                    "raw_bytes": raw.read_bytes if raw else 0,
                    "cache_bytes": read.cache_bytes if read else 0,
                    "from": "here",
                }
            )
    if not rows:
        raise NotMeasuredError("the convolution was not profiled")
    rows = _once(rows)
    rows += [
        {
            "kernel": k.kernel,
            "read_raw_ms": k.read_raw_ms,
            "transform_ms": k.transform_ms,
            "read_cache_ms": k.read_cache_ms,
            "execute_1_core_ms": k.execute_ms,
            "from": "paper: ncnn on a phone, all big cores",
        }
        for k in paper.TABLE2
    ]
    return pd.DataFrame(rows)


def quick_look_only(candidate: Candidate) -> bool:
    """Tell whether a candidate has one sample, and none on several cores, where the profile repeats that of one.

    Two medians of samples of their own, nine digits each, do not agree to the last one.
    """
    times = list(candidate.execute_ms.values())
    return len(times) > 1 and len(set(times)) == 1


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows that differ in their layout only into one, which names them all."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr({name: value for name, value in row.items() if name != "layout"})
        layouts = f"{found[key]['layout']}, {row['layout']}" if key in found else row["layout"]
        found[key] = row | {"layout": layouts}
    return list(found.values())


def table_04(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate each model with its size, FLOPs (two a multiply-add), what its plan stores beside it, and planning time."""
    widest = e.plans[(e.plans["plan"] == OPTIMAL) & (e.plans["threads"] == e.plans["threads"].max())]
    plans: dict[str, Any] = {plan["model"]: plan for plan in widest.to_dict("records")}
    rows = []
    for row in e.models.to_dict("records"):
        model = str(row["model"])
        told, plan = TABLE4[model], plans.get(model)
        rows.append(
            {
                "model": model,
                "parameters_m": row["parameters"] / 1e6,
                "paper_parameters_m": told.parameters_m,
                "model_mb": row["model_bytes"] / _MB,
                "paper_model_mb": told.model_mb,
                "flops_g": 2 * row["macs"] / 1e9,
                "paper_flops_g": told.flops_g,
                "storage_mb": plan["cache_bytes"] / _MB if plan else np.nan,
                "paper_storage_mb": told.storage_mb,
                "planning_ms": plan["planning_ms"] if plan else np.nan,
                "paper_planning_meizu16t_ms": paper.TABLE4_PLANNING_MEIZU_MS[model],
                "paper_planning_pixel5_ms": paper.TABLE4_PLANNING_PIXEL5_MS[model],
            }
        )
    if not rows:
        raise NotMeasuredError("no model was measured")
    return pd.DataFrame(rows)


#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, TableSpec[ColdEvidence]] = registry(
    TableSpec("cold_beside", "Our start against the best stock setting of each model", runs.beside),
    TableSpec("cold_table_01", "Stages of a cold start", stages.table_01),
    TableSpec("cold_table_02", "Kernel alternatives of one convolution", table_02),
    TableSpec("cold_table_04", "Models, storage and planning", table_04),
    TableSpec("cold_table_05", "Speed-up over stock engines", runs.table_05),
    TableSpec("cold_figure_08", "Cold latency of every model", runs.figure_08),
    TableSpec("cold_figure_02", "Cold over warm", runs.figure_02_summary),
    TableSpec("cold_figure_06", "Stages by the number of cores", stages.figure_06),
    TableSpec("cold_figure_09", "Cold latency by the number of cores", stages.figure_09),
    TableSpec("cold_figure_11", "Background load", runs.figure_11),
    TableSpec("cold_figure_13", "Ablation", runs.figure_13),
    TableSpec("cold_figure_14", "Continuous inference", continuous.figure_14),
)
