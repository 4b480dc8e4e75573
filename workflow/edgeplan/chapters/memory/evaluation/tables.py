"""The tables of the chapter on memory."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import MemoryEvidence
from edgeplan.reporting import kit


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
        }
    ).reset_index(drop=True)


def budgets(e: MemoryEvidence) -> pd.DataFrame:
    """Every budget: peak, latency, and the bound."""
    f = e.budgets
    return pd.DataFrame(
        {
            "model": f["model"],
            "share": f["share"],
            "budget_mib": _mib(f["budget"]),
            "peak_mib": _mib(f["peak"]),
            "needed_mib": _mib(f["needed"]),
            "median_ms": f["median_ms"].round(2),
            "resident_ms": f["resident_ms"].round(2),
            "bound_ms": f["bound_ms"].round(2),
            "over_bound": (f["median_ms"] / f["bound_ms"]).round(3),
            "planned_ms": f["predicted_ms"].round(2),
            "plan_gap": (f["predicted_ms"] / f["plan_bound_ms"] - 1).round(4),
            "wait_ms": f["wait_ms"].round(2),
            "read_mib": _mib(f["read"]),
            "mb_per_s": (f["bytes_per_ms"] / 1e3).round(0),
            "limited_over": f["pause_ms"].round(3),
            "major_faults": f["major_faults"].astype("Int64"),
            "failures": f["failures"].astype("Int64"),
            "error": f["error"],
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


def stock(e: MemoryEvidence) -> pd.DataFrame:
    """Stock engines: peak over idle and latency."""
    f = e.stock
    return pd.DataFrame(
        {
            "model": f["model"],
            "setting": f["setting"],
            "peak_mib": _mib(f["peak"]),
            "anonymous_mib": _mib(f["anonymous"]),
            "file_mib": _mib(f["file"]),
            "idle_mib": _mib(f["idle"]),
            "median_ms": f["median_ms"].round(2),
            "cpu_ms": f["cpu_ms"].round(2),
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


def held(e: MemoryEvidence) -> pd.DataFrame:
    """A stock engine and our plan, held to as much memory by the system."""
    f = e.held
    return pd.DataFrame(
        {
            "model": f["model"],
            "setting": f["setting"],
            "budget_mib": _mib(f["budget"]),
            "median_ms": f["median_ms"].round(2),
            "major_faults": f["major_faults"].astype("Int64"),
            "failures": f["failures"].astype("Int64"),
            "reason": f["reason"],
        }
    ).reset_index(drop=True)


def overhead(e: MemoryEvidence) -> pd.DataFrame:
    """The least peak on a slower processor (the paper's Table 2)."""
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


def power(e: MemoryEvidence) -> pd.DataFrame:
    """What an inference costs besides time: processor time and bytes read."""
    f = e.planned
    return pd.DataFrame(
        {
            "model": f["model"],
            "budget_mib": _mib(f["budget"]),
            "cpu_ms": f["cpu_ms"].round(2),
            "read_mib": _mib(f["read"]),
        }
    ).reset_index(drop=True)


#: Every table by id.
MEMORY_TABLES: Mapping[str, kit.TableSpec[MemoryEvidence]] = kit.registry(
    kit.TableSpec("memory_least", "Least peak that runs (Figure 10)", least, ("least",)),
    kit.TableSpec("memory_budgets", "Latency by budget, beside the bound", budgets, ("budgets",)),
    kit.TableSpec("memory_overhead", "Overhead on a slower processor (Table 2)", overhead, ("slowed",)),
    kit.TableSpec("memory_held", "Held to a limit by the system", held, ("held",)),
    kit.TableSpec("memory_stock", "Stock engines (Figure 1)", stock, ("stock",)),
    kit.TableSpec("memory_power", "Processor time and bytes read (Figure 12)", power, ("planned",)),
)
