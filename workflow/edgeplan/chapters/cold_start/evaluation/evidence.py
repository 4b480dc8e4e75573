"""Evidence of the chapter is read from the folder that the measuring stage writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from edgeplan.planning.profile import Profile, fewest_read_bytes, work_bound_ms
from edgeplan.profiling.frame import from_frame

#: Setting of the package's own runtime in the runs, and its plan that is held against the stock engines.
OWN, OPTIMAL = "edgeplan", "optimal"
#: The plan for an evicted page cache. It is run among the others under a setting of its own, and is `OWN`'s in the tables.
EVICTED_PLAN, EVICTED_SETTING = "evicted", "edgeplan-evicted"
#: The same runtime without work stealing, and with the mode that prepares kernels of later runs in idle time.
FIXED, CONTINUOUS = "edgeplan-fixed", "edgeplan-continuous"
#: Plans of the ablation besides the pipelined one (Figure 13): shown in both states of the page cache.
ABLATION = ("warm", "K", "K+C")
#: Plans that stand for their schedule, and run without stealing: an idle lane would turn a sequence into a pipeline, and one
#: that stands for a slower core would prepare slowly what it takes.
FOLLOWED = (*ABLATION, "asymmetric", "asymmetric-nnv12")
#: States of the page cache.
CACHED, EVICTED = "cached", "evicted"
#: Name of the single convolution of Table 2 among the profiled models.
TABLE2_CONV = "conv_3x3_64_192"

#: Columns beyond those of a frame's own schema; a missing file or column is an error.
FRAMES: Mapping[str, tuple[str, ...]] = {
    "runs": (
        *("model", "setting", "plan", "threads", "state", "repeat", "cold_ms", "warm_min_ms", "output_error"),
        *("stock", "reason", "slowness", "interference", "load_percent", "load_core"),
    ),
    "bandwidth": ("model", "mb_per_s"),
    "profiles": ("model", "layout", "step", "implementation", "source"),
    "plans": (
        *("model", "plan", "threads", "little_ratio", "planner", "costs", "layout", "steps", "widen_from"),
        *("makespan_ms", "lower_bound_ms", "planning_ms", "cache_bytes", "note", "document"),
    ),
    "models": ("model", "parameters", "model_bytes", "macs"),
    "checks": ("model", "layout", "choice", "error"),
}


@dataclass(frozen=True)
class ColdEvidence:
    """Evidence holds the measurements of the chapter on one device; times carry their unit in the column's name.

    Attributes:
        runs: one row a process (`measuring.results.RUN_COLUMNS`), with `plan` ("" of stock engines), `load_percent` and
            `load_core` (of a background load), `warm_ms` (JSON list of the warm runs), `slowness` (how many times its
            profiled cost work took around the run, by the references timed beside both), `interference` (how many times as
            long as usual a load on all processors of the run took beside it).
        bandwidth: the disk, probed among the runs: model, repeat, file_bytes, mb_per_s.
        profiles: `profiling.frame`; beside the models, the convolution of Table 2.
        plans: one row a plan document: model, plan, threads, little_ratio, planner, costs, layout, steps, widen_from,
            makespan_ms, lower_bound_ms, gap, planning_ms, read_bytes, cache_bytes, note, document (JSON).
        models: model, parameters, model_bytes, macs.
        checks: outputs against ONNX Runtime, one row a program and thread count: model, layout, choice (which candidate every
            step takes), error.
        notes: why something was not measured, by topic.
        environment: the captured environment, with `measured_at`.
    """

    device: str
    runs: pd.DataFrame
    bandwidth: pd.DataFrame
    profiles: pd.DataFrame
    plans: pd.DataFrame
    models: pd.DataFrame
    checks: pd.DataFrame
    notes: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def profiled(self) -> Mapping[str, tuple[Profile, ...]]:
        """Return the profiles by model, one a home layout."""
        every = from_frame(self.profiles, "profiles.parquet") if len(self.profiles) else ()
        return {model: tuple(p for p in every if p.model == model) for model in dict.fromkeys(p.model for p in every)}

    @cached_property
    def work_bound_ms(self) -> pd.Series[float]:
        """Return by model the least work bound of any home layout (ms), at the speed that profiled costs are brought to."""
        bounds = {model: min(map(work_bound_ms, profiles)) for model, profiles in self.profiled.items()}
        return pd.Series(bounds, dtype="float64")

    @cached_property
    def read_bound_ms(self) -> pd.Series[float]:
        """Return by model the fewest bytes any candidates need, over the disk's median bandwidth among its runs (ms)."""
        needed = pd.Series({m: min(map(fewest_read_bytes, profiles)) for m, profiles in self.profiled.items()}, dtype="float64")
        probes = self.bandwidth[self.bandwidth["mb_per_s"] > 0]
        bandwidth = probes.groupby("model")["mb_per_s"].median()
        return needed[needed.index.isin(bandwidth.index)] / 1e3 / bandwidth.reindex(needed.index).dropna()

    @property
    def threads(self) -> int:
        """Return the most threads any run had: all cores of the chapter."""
        return int(self.runs["threads"].max()) if len(self.runs) else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Return the models, in order."""
        return tuple(self.models["model"])
