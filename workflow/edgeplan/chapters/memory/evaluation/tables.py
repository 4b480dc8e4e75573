"""The tables of the chapter on memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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
    """The least peak over all weights in memory and over engines, on a slower processor and beside a busy core."""
    kinds = ((e.slowed, e.phonelike, "slowed"), (e.busy, e.turns[e.turns["setting"] == "busy"], "a busy core beside it"))
    found = [_costs(rows[rows["reason"] == ""], turns, told) for rows, turns, told in kinds]
    return pd.concat(found, ignore_index=True)


def _costs(f: pd.DataFrame, turns: pd.DataFrame, told: str) -> pd.DataFrame:
    own = f["setting"].isin([OWN, "overhead"])
    over = estimate(np.median, turns["median_ms"] / turns["resident_ms"] - 1)
    return pd.DataFrame(
        {
            "model": f["model"],
            "how": told,
            "over": f["setting"].where(~own, "our own program, all weights in memory"),
            "overhead": pd.Series(over.value, f.index).where(own).fillna(f["median_ms"]).round(4),
            "low": pd.Series(over.low, f.index).where(own).round(4),
            "high": pd.Series(over.high, f.index).where(own).round(4),
            "stalls": f["wait_ms"].round(4),
            "ratio": f["ratio"].round(2),
            "slowed": f["factor"].fillna(f["predicted_ms"]).round(2),
            "turns": f["pairs"].astype("Int64"),
            "peak_mib": _mib(f["peak"]),
            "paper_overhead": f["model"].map(paper.OVERHEAD).where(~own),
        }
    )


def frugal(e: MemoryEvidence) -> pd.DataFrame:
    """Show what people would pick for little memory, beside our plans: free, and held to limits; a line a read-ahead."""
    f = e.frugal.assign(reason=e.frugal["reason"].fillna(""))
    free = f[f["budget"].isna()]
    limits = sorted(f["budget"].dropna().unique(), reverse=True)
    lines = []
    for (model, setting, kilobytes), rows in f.groupby(["model", "setting", "read_ahead"], sort=False, dropna=False):
        own = free[(free["model"] == model) & (free["setting"] == setting)].iloc[0]
        line = {
            "model": model,
            "setting": setting,
            "read_ahead_kib": kilobytes,
            "peak_mib": own["peak"] / MIB,
            "anonymous_mib": own["anonymous"] / MIB,
            "file_mib": own["file"] / MIB,
            "free": _time_or_reason(own),
        }
        for limit in limits:
            held = rows[rows["budget"] == limit]
            line[f"idle + {limit / MIB:g} MiB"] = _time_or_reason(held.iloc[0]) if len(held) else ""
        lines.append(line)
    table = pd.DataFrame(lines).round(dict.fromkeys(("peak_mib", "anonymous_mib", "file_mib"), 1))
    return table.astype({"read_ahead_kib": "Int64"})


def _time_or_reason(row: pd.Series[Any]) -> str:
    """The time of a run with its major faults; or why there is none."""
    if not row["median_ms"] > 0:
        return str(row["reason"]).partition(":")[0] if row["reason"].startswith("killed") else str(row["reason"])
    faults = f", {row['major_faults']:.0f} faults" if row["major_faults"] > 0 else ""
    return f"{row['median_ms']:.4g} ms{faults}"


def same_memory(e: MemoryEvidence) -> pd.DataFrame:
    """Our plan in as much memory as others take, and the least that it runs in (Figure 10)."""
    f = e.same
    least = e.least.set_index("model")["peak"]
    theirs = [paper.SAVED.get(key, (math.nan, math.nan)) for key in zip(f["model"], f["setting"], strict=True)]
    return pd.DataFrame(
        {
            "model": f["model"],
            "beside": f["setting"],
            "memory_mib": _mib(f["budget"]),
            "their_ms": f["full_ms"].round(2),
            "our_ms": f["median_ms"].round(2),
            "time_saved": (1 - f["median_ms"] / f["full_ms"]).round(4),
            "paper_time_saved": [time for _, time in theirs],
            "our_least_mib": _mib(f["model"].map(least)),
            "memory_saved": (1 - f["model"].map(least) / f["budget"]).round(4),
            "paper_memory_saved": [memory for memory, _ in theirs],
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


def kernels(e: MemoryEvidence) -> pd.DataFrame:
    """Every kernel of a convolution (Figure 2)."""
    f = e.kernels.sort_values(["model", "compute_ms"])
    fastest, least = (f.groupby("model")[name].transform("min") for name in ("compute_ms", "needed"))
    return pd.DataFrame(
        {
            "model": f["model"],
            "kernel": f["setting"],
            "ms": f["compute_ms"].round(3),
            "memory_mib": _mib(f["needed"]),
            "weights_mib": _mib(f["weights"]),
            "time over the fastest": (f["compute_ms"] / fastest).round(2),
            "memory over the least": (f["needed"] / least).round(2),
        }
    ).reset_index(drop=True)


def slices(e: MemoryEvidence) -> pd.DataFrame:
    """Every cut of a layer (Figure 11)."""
    f = e.slices
    return pd.DataFrame(
        {
            "model": f["model"],
            "cut": f["setting"],
            "least_mib": _mib(f["needed"]),
            "memory_mib": _mib(f["peak"]),
            "compute_ms": f["compute_ms"].round(3),
            "load_ms": f["load_ms"].round(3),
            "loaded_ahead_ms": f["median_ms"].round(3),
            "when_needed_ms": f["full_ms"].round(3),
            "read_mib": _mib(f["read"]),
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


def processor_time(e: MemoryEvidence) -> pd.DataFrame:
    """Processor time and bytes of an inference at the least memory beside those at the largest budget (Figure 12)."""
    f = e.processor_time
    return pd.DataFrame(
        {
            "model": f.index,
            "least_cpu_ms": f["cpu_ms"].round(2),
            "most_cpu_ms": f["cpu_ms_most"].round(2),
            "most_share": f["share"],
            "gained": (f["ratio"] - 1).round(4),
            "paper_energy_gained": f.index.map(paper.ENERGY),
            "least_read_mib": _mib(f["read"]),
            "most_read_mib": _mib(f["read_most"]),
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
    kit.TableSpec("memory_frugal", "What people would pick for little memory, free and held to it", frugal, ("frugal",)),
    kit.TableSpec("memory_beside", "Peak and latency beside stock engines", beside, ("stock",)),
    kit.TableSpec("memory_least", "Least peak that runs", least, ("least",)),
    kit.TableSpec("memory_same", "Time in as much memory as others take (Figure 10)", same_memory, ("same",)),
    kit.TableSpec("memory_overhead", "Overhead on a slower processor, and beside a busy core", overhead, ("slowed",)),
    kit.TableSpec("memory_kernels", "Kernels of one convolution (Figure 2)", kernels, ("kernels",)),
    kit.TableSpec("memory_slices", "Cuts of one layer (Figure 11)", slices, ("slices",)),
    kit.TableSpec("memory_processor_time", "Processor time at little memory (Figure 12)", processor_time, ("processor_time",)),
    kit.TableSpec("memory_offline", "Storage and time of planning (Table 2)", offline, ("offline",)),
)
