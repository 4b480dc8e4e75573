"""Prepares measured kernels as training data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import FIRST_WORK, features
from edgeplan.predictors.launches import launch_features

Floats = npt.NDArray[np.float64]
COLUMNS = ("subject", "sampler", "kind", "config", "latency_us")
_TEXT = ("subject", "implementation", "input_state", "input_layout", "output_layout", "sampler")
#: Noise at which a label weighs half, and the latency below which the engine's clock (whole microseconds) blurs it.
_HALF_WEIGHT_NOISE = 0.05
_CLOCK_US = 3.0
_NOT_DISPATCHED: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True)
class Labels:
    """Holds labelled kernels, row by row.

    Attributes:
        frame: the rows, with every optional column filled in.
        matrix: features of the rows (n, features).
        latency: us (n,).
        weight: how far each label is trusted (n,).
        group: number of the measured subject; siblings share noise and never lie on both sides of a split (n,).
        work_version: how the features count work.
    """

    frame: pd.DataFrame
    matrix: Floats
    latency: Floats
    weight: Floats
    group: npt.NDArray[np.int64]
    work_version: int = FIRST_WORK

    def __len__(self) -> int:
        return len(self.latency)

    def take(self, index: npt.NDArray[Any]) -> Labels:
        """Return the rows at `index` (a mask or positions)."""
        arrays = (self.matrix[index], self.latency[index], self.weight[index], self.group[index])
        return Labels(self.frame.iloc[index], *arrays, self.work_version)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the frame as an array (n,)."""
        return self.frame[name].to_numpy()


def read_labels(rows: pd.DataFrame, numbers: Mapping[str, int] = _NOT_DISPATCHED, version: int = FIRST_WORK) -> Labels:
    """Check a table of labelled kernels and compute its features.

    Args:
        rows: the table.
        numbers: numbers of the device that launches follow from; none where kernels are not dispatched.
        version: how the features count work.
    """
    frame = rows[np.isfinite(rows["latency_us"]) & (rows["latency_us"] > 0)].reset_index(drop=True)
    if frame.empty:
        raise FormatError("no labelled kernel to train on", where="training table", next_step="run the sampling stage")
    for name in _TEXT:
        frame[name] = frame[name].fillna("").astype(str) if name in frame else ""
    if "noise" not in frame:
        frame["noise"] = 0.0
    distinct = frame["config"].drop_duplicates()
    parsed = {text: KernelConfig.from_json(text) for text in distinct}
    position = {text: i for i, text in enumerate(parsed)}
    table, place = ConfigTable.of(parsed.values()), np.array([position[text] for text in frame["config"]])
    matrix = features(table, version)[place]
    if numbers:
        layouts, implementations = frame["input_layout"].tolist(), frame["implementation"].tolist()
        launches = launch_features(table.take(place), layouts, implementations, numbers)
        matrix = np.column_stack([matrix, launches])
    latency = frame["latency_us"].to_numpy(dtype=np.float64)
    noise = frame["noise"].fillna(0.0).to_numpy(dtype=np.float64)
    weight = latency / (latency + _CLOCK_US) / (1 + (noise / _HALF_WEIGHT_NOISE) ** 2)
    # A weight of nothing is no help: very noisy labels still say something where there are no others.
    weight = np.maximum(weight, 0.02)
    return Labels(frame, matrix, latency, weight, pd.factorize(frame["subject"])[0].astype(np.int64), version)


def group_folds(group: npt.NDArray[np.int64], folds: int, seed: int) -> npt.NDArray[np.int64]:
    """Draw a fold for each row such that the rows of a group share one (n,); there are at most as many folds as groups."""
    groups, inverse = np.unique(group, return_inverse=True)
    shuffled = np.random.default_rng(seed).permutation(len(groups))
    return np.asarray((shuffled % max(1, min(folds, len(groups))))[inverse], dtype=np.int64)
