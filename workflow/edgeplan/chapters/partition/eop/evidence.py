"""This module holds what the stage `partition_eop` measured, and the parts of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from edgeplan.chapters.partition.eop import paper
from edgeplan.chapters.partition.eop.ways import CPU_WAY, EOP, GPU_WAY, OURS, WAYS
from edgeplan.chapters.partition.names import ALL_CORES
from edgeplan.planning.partition.patterns import Pattern, fit, fits

_MS = 1e3


@dataclass(frozen=True)
class EopEvidence:
    """Evidence holds the rows of the stage.

    Attributes:
        pair: its name.
        sampled: operator, dimension, size, side, us.
        sweeps: `sweeps.SWEEP` with name, operator, of_paper, refused, model, figure, setting, value.
        plans: one row a model and way: see `stages.partition_eop.COLUMNS`, with model, figure, setting, value.
        key: key operators, likewise.
        environment: of the machine.
    """

    pair: str
    sampled: pd.DataFrame
    sweeps: pd.DataFrame
    plans: pd.DataFrame
    key: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def own(self) -> pd.DataFrame:
        """Plans of the models themselves, those that ran."""
        return self.plans[(self.plans["figure"] == "") & self.plans["median_ms"].notna()]

    @cached_property
    def end_to_end(self) -> pd.DataFrame:
        """Models by way: median time in ms."""
        found = self.own.pivot_table(index="model", columns="way", values="median_ms", aggfunc="first", sort=False)
        return found.reindex(columns=list(WAYS))

    @cached_property
    def varied(self) -> pd.DataFrame:
        """Plans of the models of figures 9 and 10."""
        return self.plans[(self.plans["figure"] != "") & self.plans["median_ms"].notna()]

    @cached_property
    def tuned(self) -> pd.DataFrame:
        """Key operators of the models themselves, at EOP's ratio and at the best that was swept."""
        return self.key[(self.key["figure"] == "") & (self.key["grid_us"] > 0)]

    @cached_property
    def wholes(self) -> pd.DataFrame:
        """Steps whole on each processor, us: model, step, name, operator, cpu, gpu."""
        rows = self.sweeps[(self.sweeps["dimension"] == "") & (self.sweeps["figure"] == "")]
        keys = ["model", "step", "name", "operator"]
        cpu, gpu = (rows[rows["end"] == end].set_index(keys)[f"{side}_us"] for end, side in ((1, "cpu"), (0, "gpu")))
        return pd.DataFrame({"cpu_us": cpu, "gpu_us": gpu}).reset_index()

    @cached_property
    def patterns(self) -> pd.DataFrame:
        """Operators alone: operator, dimension, side, the fitted pattern, its error, and what the paper names."""
        rows = []
        measured = self.sampled[self.sampled["us"].notna()]
        for (operator, dimension, side), own in measured.groupby(["operator", "dimension", "side"], sort=False):
            pattern, every = fitted(own), {p.name: p.error_ms for p in fits(*_samples(own))}
            named = paper.PATTERNS.get((str(operator), str(dimension), str(side)), "")
            mean_ms = float(own["us"].mean()) / _MS
            others = every.get(named, float("nan")) / mean_ms
            rows.append([operator, dimension, side, pattern.name, pattern.error_ms / mean_ms, named, others])
        return pd.DataFrame(rows, columns=["operator", "dimension", "side", "pattern", "error", "paper", "paper_error"])

    @cached_property
    def best_single(self) -> pd.Series[float]:
        """Return the time of the better processor for each model, ms."""
        return self.end_to_end[["cpu", "gpu"]].min(axis=1)

    @cached_property
    def beside(self) -> pd.DataFrame:
        """By model and by varied model, ms: our plan, and what the better processor and oneDNN on all cores take.

        Returns:
            figure ("" of the models themselves), model, ours (not a number where it did not run), single, all_cores; best of
            the last two, and its way.
        """
        times = self.plans.pivot_table(
            index=["figure", "model"], columns="way", values="median_ms", aggfunc="first", dropna=False, sort=False
        ).reindex(columns=list(WAYS))
        times = times.dropna(how="all")
        others = times[[CPU_WAY, GPU_WAY, ALL_CORES]]
        found = {"ours": times[OURS], "single": times[[CPU_WAY, GPU_WAY]].min(axis=1), "all_cores": times[ALL_CORES]}
        return pd.DataFrame({**found, "best": others.min(axis=1), "way": others.idxmin(axis=1)}).reset_index()

    def of_figure(self, figure: str) -> pd.DataFrame:
        """Varied models of a figure by setting, value and way."""
        rows = self.varied[self.varied["figure"] == figure]
        rows = rows.assign(kind=rows["model"].str.split().str[0])
        found = rows.pivot_table(index=["kind", "setting", "value"], columns="way", values="median_ms", aggfunc="first")
        return found.reindex(columns=list(WAYS))

    def estimate(self, model: str) -> float:
        """EOP's AT of a model, ms."""
        rows = self.plans[(self.plans["model"] == model) & (self.plans["way"] == EOP)]
        return float(rows["predicted_ms"].iloc[0])


def fitted(own: pd.DataFrame) -> Pattern:
    """The pattern of one operator over one dimension: sizes as shares of the largest."""
    return fit(*_samples(own))


def _samples(own: pd.DataFrame) -> tuple[list[float], list[float]]:
    own = own.sort_values("size")
    return (own["size"] / own["size"].max()).tolist(), (own["us"] / _MS).tolist()
