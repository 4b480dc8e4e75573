"""Evidence of the chapter on memory is one table of measured rows, and parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from edgeplan.chapters.memory.budget import MACHINE

#: What shares are of.
DEFAULT = "onnxruntime"
OWN = "edgeplan"


def machine_of(rows: pd.DataFrame) -> pd.Series[str]:
    """The machine that rows name; "" for that of the environment, as in rows that were never measured alone."""
    return rows[MACHINE].fillna("") if MACHINE in rows else pd.Series("", rows.index)


def _case(name: str) -> cached_property[pd.DataFrame]:
    return cached_property(lambda evidence: evidence.runs[evidence.runs["case"] == name])


@dataclass(frozen=True)
class MemoryEvidence:
    """Rows of the stage `memory`; see `measuring.NUMBERS`.

    Attributes:
        device: name of the device.
        runs: all rows.
        environment: of the machine.
    """

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

        `stock_ms` and `best_stock_ms` are the times of the same engine and of the fastest one, both with all that they want,
        where these were measured on the same machine.
        """
        found, stock = self.runs[self.runs["case"] == "least"], self.stock
        default = stock[stock["setting"] == DEFAULT].set_index("model")
        frugal = stock[stock["setting"].str.endswith("frugal")].set_index("model")["peak"]
        best = stock.groupby("model")["median_ms"].min()
        here = machine_of(found) == found["model"].map(machine_of(default))
        return found.assign(
            stock_peak=found["model"].map(default["peak"]),
            frugal_peak=found["model"].map(frugal),
            stock_ms=found["model"].map(default["median_ms"]).astype("float64").where(here),
            best_stock_ms=found["model"].map(best).astype("float64").where(here),
        )

    #: The model on a processor that is slower by waiting.
    slowed = _case("slowed")
    #: A stock engine and our plan, held to as much memory.
    held = _case("held")
    #: Sessions that changed their budget.
    switched = _case("switched")
    #: Budgets that a stored schedule is chosen for.
    changed = _case("changed")
    #: Layers of each model, no step cut, in order.
    layers = _case("layer")
    #: Ways to cut each model that were profiled.
    cuts = _case("cut")
    #: Plans without static memory, without loading ahead, and without both.
    ablated = _case("ablated")
    #: Runs of plans for total budgets, each in a group of that limit; a run that was killed has `failures`.
    contained = _case("contained")
    #: Latency held to a budget over that without a limit, by turns; `failures` counts runs that were killed.
    held_latency = _case("held latency")
    #: Inferences of a session that goes through budgets.
    adapted = _case("adapted")
    #: Planning at the paper's budgets.
    offline = _case("offline")
    #: Idle memory of `edgeplan run`; it belongs to no model.
    floor = _case("floor")
    #: Heights of layouts of activations and scratch, by who lays out.
    layouts = _case("layout")
