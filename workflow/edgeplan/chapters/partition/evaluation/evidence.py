"""This module holds what the chapter on partitions measured, and the parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition.names import ALL_CORES, SAME_PLAN
from edgeplan.reporting.metrics import FloatArray

#: Ways to run a layer: whole on one processor, and split by different choices.
CPU, GPU, SEARCH, OURS, PLAIN, EQUAL, FIXED, EVENTS = (
    *("cpu", "gpu", "search", "ours", "without dispatch features", "equal", "fixed", "waiting for events"),
)
GREEDY = "greedy"
#: Those of a layer, in the order of tables.
LAYER_WAYS = (SEARCH, OURS, PLAIN, FIXED, EQUAL, EVENTS, ALL_CORES)
#: Ways to run a model on the pair.
PAIR_WAYS = (OURS, GREEDY, FIXED, EQUAL, CPU, GPU)
FlagArray = npt.NDArray[np.bool_]
#: Oracles below it gain too little to be a divisor.
WORTH = 1.05


@dataclass(frozen=True)
class PartitionEvidence:
    """Rows of the stage `partition`.

    Attributes:
        pair: its name.
        errors: of the predictors, `learning.training.Trained.errors`.
        importance: likewise.
        layers: one row a layer and way: kind, name, way, channels (of the CPU, as measured), now (as the present predictors
            choose), outputs, us.
        models: one row a model and way: model, way, median_ms, repeat (one half of the runs over the other), predicted_ms,
            peak_mib, cpu_ms, error, tolerance, splits, steps, plan_seconds, plan_gap, reason; of our plan now_ms and
            now_splits, the prediction and the splits of the plan that the present predictors lead to.
        handshakes: synchronisation, least_us, median_us, note.
        curves: of figures: figure, outputs, cpu_us, gpu_us with low and high, implementation, work_groups, and what predictors
            say.
        environment: of the machine, with the rules' counts of layers.
    """

    pair: str
    errors: pd.DataFrame
    importance: pd.DataFrame
    layers: pd.DataFrame
    models: pd.DataFrame
    handshakes: pd.DataFrame
    curves: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def speedups(self) -> pd.DataFrame:
        """By kind and layer (index), a column for each way: speedup over the faster single processor, both on fresh runs."""
        us = self.layers.pivot_table(index=["kind", "name"], columns="way", values="us", aggfunc="first")
        if not {CPU, GPU} <= set(us.columns):
            return us.iloc[:0]
        best = us[[CPU, GPU]].min(axis=1)
        return us.rdiv(best, axis=0)

    @cached_property
    def planned_before(self) -> tuple[FlagArray, FlagArray]:
        """For each layer and each model whether our measured plan is none that the present predictors lead to.

        Tables of before they said so have none of either.
        """
        none = np.zeros(0, np.bool_)
        layers = self.layers[self.layers["way"] == OURS]
        split = (layers["channels"] != layers["now"]).to_numpy(np.bool_) if "now" in layers else none
        if "now_ms" not in self.planned:
            return split, none
        planned = self.planned[["predicted_ms", "now_ms", "splits", "now_splits"]].to_numpy(float).T
        return split, ~np.isclose(planned[0], planned[1], rtol=SAME_PLAN) | (planned[2] != planned[3])

    @cached_property
    def tested(self) -> pd.DataFrame:
        """Held-out samples with their relative errors."""
        rows = self.errors[self.errors["split"] == "test"]
        return rows.assign(error=(rows["predicted_us"] / rows["measured_us"] - 1).abs())

    @cached_property
    def end_to_end(self) -> pd.DataFrame:
        """Models by way: median time in ms."""
        ran = self.models[self.models["median_ms"].notna()]
        return ran.pivot_table(index="model", columns="way", values="median_ms", aggfunc="first", sort=False)

    @cached_property
    def ours(self) -> pd.DataFrame:
        """Our plan of every model, with a reason and without times where it did not run."""
        return self.models[self.models["way"] == OURS].drop_duplicates("model", keep="last")

    @cached_property
    def planned(self) -> pd.DataFrame:
        """Our plans of models that ran."""
        return self.ours[self.ours["median_ms"].notna()]

    @cached_property
    def beside(self) -> pd.DataFrame:
        """By model, ms: our plan (not a number where it did not run), and the best that other ways take.

        Returns:
            ours; single, all_cores, stock; best of these three, and its way.
        """
        times = self.end_to_end.reindex(self.ours["model"].drop_duplicates())
        stock = times.drop(columns=[way for way in (*PAIR_WAYS, ALL_CORES) if way in times])
        single = times.reindex(columns=[CPU, GPU])
        others = pd.concat([single, times.reindex(columns=[ALL_CORES]), stock], axis=1)
        known = others.notna().any(axis=1)
        return pd.DataFrame(
            {
                "ours": times.reindex(columns=[OURS])[OURS],
                "single": single.min(axis=1),
                "all_cores": others[ALL_CORES],
                "stock": stock.min(axis=1) if len(stock.columns) else np.nan,
                "best": others.min(axis=1),
                "way": others[known].idxmin(axis=1).reindex(times.index),
            }
        )

    def curve(self, figure: str) -> pd.DataFrame:
        """Return the rows that a figure shows."""
        return self.curves[self.curves["figure"] == figure].sort_values("outputs")


def gain_share(speedups: pd.DataFrame, way: str) -> float:
    """Sum over layers of (speedup - 1) / sum of (the search's - 1), both over the faster single processor."""
    return share_of(*speedups_of(speedups, way))


def share_of(own: FloatArray, searched: FloatArray) -> float:
    """Return the gain over the faster single processor as a share of the search's."""
    return float((own - 1).sum() / (searched - 1).sum())


def mean_share(speedups: pd.DataFrame, way: str) -> float:
    """Mean over layers whose search gains at least 5 % of (speedup - 1) / (the search's - 1)."""
    own, searched = speedups_of(speedups, way)
    worth = searched >= WORTH
    return float(((own[worth] - 1) / (searched[worth] - 1)).mean())


def speedups_of(speedups: pd.DataFrame, *ways: str) -> tuple[FloatArray, ...]:
    """Return the speedups of ways, the search's last, of layers that have all."""
    found = speedups[[*ways, SEARCH]].dropna()
    return tuple(found[way].to_numpy(float) for way in (*ways, SEARCH))
