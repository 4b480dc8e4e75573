"""Reads the evidence of the chapter: the judged models of every rung, and shares of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.adaptation.ladder import ALL_SECONDS, SCRATCH

#: What a rung is told by.
RUNG = ["target", "source", "method", "budget_s", "use"]
ALL = "all"


@dataclass(frozen=True)
class LadderEvidence:
    """This evidence holds every rung of the ladder.

    Attributes:
        report: name of the folder of results.
        ladder: a row for each judged model, predictor, budget and draw (`ladder.rungs`).
        environment: the devices' origins.
    """

    report: str
    ladder: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def hits(self) -> pd.DataFrame:
        """Return the rows with `error`, relative and absolute, and 0 or 1: `within_10pct`, `within_5pct`, `inside`."""
        f = self.ladder
        error = (f["predicted_ms"] / f["measured_ms"] - 1).abs()
        inside = (f["low_ms"] <= f["measured_ms"]) & (f["measured_ms"] <= f["high_ms"])
        return f.assign(
            error=error,
            within_10pct=(error <= 0.1).astype(float),
            within_5pct=(error <= 0.05).astype(float),
            inside=inside.astype(float),
        )

    @cached_property
    def rungs(self) -> pd.DataFrame:
        """Return one row a rung: shares over models and draws, what a draw held, and how many draws there were."""
        grouped = self.hits.groupby(RUNG, sort=False)
        found = grouped[["within_10pct", "within_5pct", "inside", "carriers", "whole_models", "spent_s"]].mean()
        found["median_error"] = grouped["error"].median()
        found["draws"] = grouped["seed"].nunique()
        return found.reset_index()

    def of_engine(self, device: str) -> str:
        """Return the engine of a device."""
        return str(self.environment["devices"][device]["engine"])

    def differences(self, rung: pd.Series) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return a rung's share within 10 % from scratch less adapted, by model, each the mean over draws (models,).

        Args:
            rung: an adapted rung of `rungs`.
        """
        f = self.hits[(self.hits["target"] == rung["target"]) & (self.hits["budget_s"] == rung["budget_s"])]
        f = f[f["use"] == rung["use"]]
        by_model = f.groupby(["method", "source", "model_id"])["within_10pct"].mean()
        ours = by_model.loc[rung["method"], rung["source"]]
        if SCRATCH not in by_model.index.get_level_values("method"):
            return np.zeros(0)
        theirs = by_model.loc[SCRATCH, ""]
        return np.asarray((theirs - ours).to_numpy(float))


def rung_name(budget_s: float) -> str:
    """Name a budget as tables and figures show it."""
    return ALL if budget_s >= ALL_SECONDS else f"{budget_s:g}"
