"""The tables of the chapter on memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MACHINE, MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, OWN, MemoryEvidence, machine_of
from edgeplan.reporting import kit
from edgeplan.reporting.estimates import estimate, geomean


def _mib(values: pd.Series[float]) -> pd.Series[float]:
    return (values / MIB).round(2)


def least(e: MemoryEvidence) -> pd.DataFrame:
    """The least peak of each model, beside stock engines and the paper."""
    f = e.least
    return pd.DataFrame(
        {
            "model": f["model"],
            "peak_mib": _mib(f["peak"]),
            "anonymous_mib": _mib(f["anonymous"]),
            "file_mib": _mib(f["file"]),
            "stock_mib": _mib(f["stock_peak"]),
            "frugal_mib": _mib(f["frugal_peak"]),
            "reduction": (1 - f["peak"] / f["stock_peak"]).round(4),
            "paper_reduction": f["model"].map(paper.REDUCTION),
            "slower": (f["median_ms"] / f["resident_ms"] - 1).round(4),
            "bands": f["bands"].astype("Int64"),
            "parts": f["parts"].astype("Int64"),
            "reason": _told(f),
            MACHINE: machine_of(f),
        }
    ).reset_index(drop=True)


def budgets(e: MemoryEvidence) -> pd.DataFrame:
    """Every budget: peak, latency, and the bound."""
    return _by_budget(e.budgets)


def _by_budget(f: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "model": f["model"],
            "share": f["share"],
            "budget_mib": _mib(f["budget"]),
            "peak_mib": _mib(f["peak"]),
            "needed_mib": _mib(f["needed"]),
            "median_ms": f["median_ms"].round(2),
            "first_ms": f["first_ms"].round(2),
            "resident_ms": f["resident_ms"].round(2),
            "bound_ms": f["bound_ms"].round(2),
            "over_bound": (f["median_ms"] / f["bound_ms"]).round(3),
            "bound holds": np.where(f["median_ms"].isna(), "", np.where(f["median_ms"] < f["bound_ms"], "no", "yes")),
            "planned_ms": f["predicted_ms"].round(2),
            "plan_gap": (f["predicted_ms"] / f["plan_bound_ms"] - 1).round(4),
            "wait_ms": f["wait_ms"].round(2),
            "read_mib": _mib(f["read"]),
            "mb_per_s": (f["bytes_per_ms"] / 1e3).round(0),
            "limited_over": f["pause_ms"].round(3),
            "major_faults": f["major_faults"].astype("Int64"),
            "failures": f["failures"].astype("Int64"),
            "error": f["error"],
            "reason": _told(f),
            MACHINE: machine_of(f),
        }
    ).reset_index(drop=True)


def beside(e: MemoryEvidence) -> pd.DataFrame:
    """Our plans beside stock engines that take what they want, and both held to as much; the mean over models first."""
    least, ways = e.least, [_ways(e, model) for model in e.stock["model"].drop_duplicates()]
    first = {
        "model": "all models, mean",
        "way": f"{OWN}, least",
        "time over onnxruntime": _mean(least["median_ms"] / least["stock_ms"]),
        "time over the fastest": _mean(least["median_ms"] / least["best_stock_ms"]),
        "peak over onnxruntime": _mean(least["peak"] / least["stock_peak"]),
    }
    found = pd.concat([pd.DataFrame([first]), *ways], ignore_index=True)
    return found.fillna({"reason": "", MACHINE: ""}).astype(dict.fromkeys(("major_faults", "failures"), "Int64"))


def _mean(ratios: pd.Series[float]) -> float:
    return round(estimate(geomean, ratios.dropna()).value, 3)


def _ways(e: MemoryEvidence, model: str) -> pd.DataFrame:
    """Collect every way that a model ran: our plans from the least on, stock engines, and both held to the same limit."""
    of = [rows[rows["model"] == model] for rows in (e.least, e.budgets, e.halved, e.stock, e.held)]
    least, budgets, halved, stock, held = of
    shares, halved_shares = ((100 * rows["share"]).map("{:g} %".format).astype(str) for rows in (budgets, halved))
    named = [
        least.assign(way=f"{OWN}, least"),
        budgets.assign(way=f"{OWN}, " + shares)[budgets["median_ms"].notna()],
        halved.assign(way=f"{OWN}, " + halved_shares + ", weights as " + halved["setting"]),
        stock.assign(way=stock["setting"]),
        held.assign(way=held["setting"] + ", held by the system"),
    ]
    f = pd.concat(named, ignore_index=True)
    free = stock.set_index("setting")
    default = free.reindex([DEFAULT]).iloc[0]
    here = machine_of(f) == machine_of(stock).iloc[0]
    return pd.DataFrame(
        {
            "model": f["model"],
            "way": f["way"],
            "limit_mib": _mib(f["budget"]),
            "peak_mib": _mib(f["peak"]),
            "anonymous_mib": _mib(f["anonymous"]),
            "file_mib": _mib(f["file"]),
            "idle_mib": _mib(f["idle"]),
            "median_ms": f["median_ms"].round(2),
            "cpu_ms": f["cpu_ms"].round(2),
            "time over onnxruntime": (f["median_ms"] / default["median_ms"]).where(here).round(3),
            "time over the fastest": (f["median_ms"] / free["median_ms"].min()).where(here).round(3),
            "peak over onnxruntime": (f["peak"] / default["peak"]).round(4),
            "major_faults": f["major_faults"],
            "failures": f["failures"],
            "reason": _told(f),
            MACHINE: machine_of(f),
        }
    )


def _told(f: pd.DataFrame) -> pd.Series[str]:
    """Why a row has no times; or, where it has some, what became of the plan when the system held it to its budget."""
    reason = f["reason"].str.rstrip(":")
    return reason.where((reason == "") | f["median_ms"].isna(), "held to it: " + reason)


def overhead(e: MemoryEvidence) -> pd.DataFrame:
    """The least peak on a slower processor (the paper's section 5.2)."""
    f = e.slowed
    return pd.DataFrame(
        {
            "model": f["model"],
            "peak_mib": _mib(f["peak"]),
            "slowed": f["predicted_ms"].round(2),
            "overhead": f["median_ms"].round(4),
            "stalls": f["wait_ms"].round(4),
            "pairs": f["pairs"].astype("Int64"),
            "paper_overhead": f["model"].map(paper.OVERHEAD),
        }
    ).reset_index(drop=True)


def offline(e: MemoryEvidence) -> pd.DataFrame:
    """Storage and time of planning (the paper's Table 2)."""
    f = e.offline
    theirs = pd.DataFrame([paper.OFFLINE.get(name, (math.nan,) * len(_OFFLINE)) for name in f["model"]], f.index, _OFFLINE)
    return pd.DataFrame(
        {
            "model": f["model"],
            "budget_mb": (f["budget"] / 1e6).round(1),
            "weights_mb": (f["weights"] / 1e6).round(1),
            "cutting_ms": (1e3 * f["cutting_s"]).round(1),
            "profiling_ms": (1e3 * f["profiling_s"]).round(1),
            "planning_ms": f["replan_ms"].round(2),
            **{f"paper_{key}": theirs[key] for key in _OFFLINE},
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


_OFFLINE = ("weights_mb", "cutting_ms", "profiling_ms", "planning_ms")


#: Every table by id.
MEMORY_TABLES: Mapping[str, kit.TableSpec[MemoryEvidence]] = kit.registry(
    kit.TableSpec("memory_beside", "Peak and latency beside stock engines", beside, ("stock",)),
    kit.TableSpec("memory_least", "Least peak that runs (Figure 10)", least, ("least",)),
    kit.TableSpec("memory_budgets", "Latency by budget, beside the bound", budgets, ("budgets",)),
    kit.TableSpec("memory_overhead", "Overhead on a slower processor", overhead, ("slowed",)),
    kit.TableSpec("memory_offline", "Storage and time of planning (Table 2)", offline, ("offline",)),
)
