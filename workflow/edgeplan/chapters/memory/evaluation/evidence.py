"""Evidence of the chapter on memory is one table of measured rows, and parts of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.paper import COMPUTE_OVER_READING, RATIO_TOLERANCE

#: What shares are of.
DEFAULT = "onnxruntime"
OWN = "edgeplan"
#: Our own kernels on mapped weights.
MAPPED = "edgeplan-mapped"
#: MiB over idle at which engines that live in little memory are compared.
HELD_MIB = 45.0


def _case(name: str) -> cached_property[pd.DataFrame]:
    return cached_property(lambda evidence: evidence.runs[evidence.runs["case"] == name])


@dataclass(frozen=True)
class MemoryEvidence:
    """Rows of the stage `memory` (see `measuring.NUMBERS`), and parts of them by case."""

    device: str
    runs: pd.DataFrame
    environment: Mapping[str, Any]

    #: Stock engines with all the memory that they want.
    stock = _case("stock")
    #: Plans for shares of what ONNX Runtime takes; those that do not fit have a reason and what is needed.
    budgets = _case("budget")

    @cached_property
    def planned(self) -> pd.DataFrame:
        """Select the plans that ran, the least ones among them."""
        both = self.runs[self.runs["case"].isin(["budget", "least"])]
        return both[both["median_ms"].notna()]

    @cached_property
    def limited(self) -> pd.DataFrame:
        """Plans that the system held to their budget, with `killed` (1: it ended them, or they failed there) and `failures`.

        A plan that ran free has a reason only for what it did when held. One that was killed had a failed allocation at least,
        whatever was counted of it.
        """
        f = self.runs[self.runs["case"].isin(["budget", "least", "second"]) & self.runs["median_ms"].notna()]
        no_group = f["reason"].str.contains("cgroup")
        held = f[f["pause_ms"].notna() | f["failures"].notna() | ((f["reason"] != "") & ~no_group)]
        killed = held["pause_ms"].isna().astype("float64")
        return held.assign(killed=killed, failures=held["failures"].fillna(0).clip(lower=killed))

    @cached_property
    def least(self) -> pd.DataFrame:
        """The least peak of each model that runs, with `stock_peak` and `frugal_peak` beside it.

        `stock_ms` and `best_stock_ms` are the times of the same engine and of the fastest one, both with all that they want.
        """
        found, stock = self.runs[self.runs["case"] == "least"], self.stock
        default = stock[stock["setting"] == DEFAULT].set_index("model")
        frugal = stock[stock["setting"].str.endswith("frugal")].set_index("model")["peak"]
        best = stock.groupby("model")["median_ms"].min()
        return found.assign(
            stock_peak=found["model"].map(default["peak"]).astype("float64"),
            frugal_peak=found["model"].map(frugal),
            stock_ms=found["model"].map(default["median_ms"]).astype("float64"),
            best_stock_ms=found["model"].map(best).astype("float64"),
        )

    @cached_property
    def processor_time(self) -> pd.DataFrame:
        """Processor time of an inference at the least memory beside that at the largest budget, by model."""
        ran = self.budgets[self.budgets["median_ms"].notna()].sort_values("share")
        most = ran.groupby("model").tail(1).set_index("model")
        least = self.least.dropna(subset=["cpu_ms"]).set_index("model")
        most = most[["cpu_ms", "read", "share"]].rename(columns={"cpu_ms": "cpu_ms_most", "read": "read_most"})
        found = least[["cpu_ms", "read"]].join(most, how="inner")
        return found.assign(ratio=found["cpu_ms"] / found["cpu_ms_most"])

    #: The model on a processor that is slower by waiting: over all weights in memory, and over engines slowed alike.
    slowed = _case("slowed")
    #: The same on this processor, its other core kept busy.
    busy = _case("busy")
    #: Phases of plans, each between two phases with all weights in memory; `setting` says of which plan.
    turns = _case("turn")
    #: What people would pick for little memory, and our plans, free and held to limits.
    frugal = _case("frugal")
    #: Whole layers whose weights are loaded when they are needed, and stock engines, each beside our plan for as much memory.
    same = _case("same")
    #: Kernels of a convolution.
    kernels = _case("kernel")
    #: Cuts of one layer.
    slices = _case("slice")

    @cached_property
    def phonelike(self) -> pd.DataFrame:
        """Turns of the slowed plan while computing took as long, over reading, as it does on the paper's phones."""
        f = self.turns[self.turns["setting"] == "slowed"]
        return f[(f["ratio"] - COMPUTE_OVER_READING).abs() <= RATIO_TOLERANCE]

    @cached_property
    def held(self) -> pd.DataFrame:
        """Stock engines and our plan, held to `HELD_MIB`."""
        f = self.frugal
        found: pd.DataFrame = f[(f["budget"] == HELD_MIB * MIB) & (f["read_ahead"] == f["read_ahead"].max())]
        return found

    def over_bound(self, rows: pd.DataFrame) -> pd.Series[float]:
        """Latency of plans over their bound: the median over turns, else by the row itself."""
        ratio = self.turns["median_ms"] / self.turns["bound_ms"]
        medians = ratio.groupby([self.turns["model"], self.turns["setting"]]).median()
        shares = rows["share"].map("{:g}".format).tolist()
        names = [f"{case} {share}".removesuffix(" nan") for case, share in zip(rows["case"], shares, strict=True)]
        found = [medians.get(key, math.nan) for key in zip(rows["model"], names, strict=True)]
        return pd.Series(found, rows.index, dtype="float64").fillna(rows["median_ms"] / rows["bound_ms"])

    #: Layers of each model, no step cut, in order.
    layers = _case("layer")
    #: Plans without static memory, without loading ahead, and without both.
    ablated = _case("ablated")
    #: Runs of plans for total budgets, each in a group of that limit; a run that was killed has `failures`.
    contained = _case("contained")
    #: Inferences of a session that goes through budgets.
    adapted = _case("adapted")
    #: Plans with weights in half their bytes and with whole ones, run in turns.
    halved = _case("bf16")
    #: Planning at the paper's budgets.
    offline = _case("offline")
