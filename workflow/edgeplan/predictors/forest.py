"""Trains nn-Meter's random forest (section 5.3) as the baseline: one a kernel kind, the paper's features, raw latency."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.labels import Floats, Labels
from edgeplan.support.lazy import lazily

lightgbm = lazily("lightgbm")  # training alone needs it

#: The paper's features: configuration, FLOPs, parameters and memory; no alignment, no padding, no implementation.
PAPER_FEATURES = (
    "in_height",
    "in_width",
    "in_channels",
    "out_channels",
    "kernel_h",
    "kernel_w",
    "stride_h",
    "stride_w",
    "groups",
    "inputs",
    "macs",
    "weight_bytes",
    "total_bytes",
)
_PARAMETERS: Mapping[str, Any] = {
    "boosting": "rf",
    "objective": "l2",
    "bagging_freq": 1,
    "bagging_fraction": 0.8,
    "feature_fraction_bynode": 0.7,
    "num_leaves": 512,
    "min_data_in_leaf": 1,
    "min_sum_hessian_in_leaf": 0.0,
    "feature_pre_filter": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
    "use_missing": False,
}
_TREES = 100
_LEAST_ROWS = 4


def fit_forest(labels: Labels, matrix: Floats, seed: int) -> Any:
    """Train a LightGBM random forest of latency (us) on the paper's features; `matrix` holds all the trees' features."""
    # Columns the forest must not see are made constant rather than dropped: all text models share one feature list.
    hidden = [i for i in range(matrix.shape[1]) if i >= len(FEATURES) or FEATURES[i] not in PAPER_FEATURES]
    seen = matrix.copy()
    seen[:, hidden] = 0.0
    if len(labels) < _LEAST_ROWS:
        constant = np.full(len(labels), labels.latency.mean())
        # without bagging: a share of one row is none
        parameters = {**_PARAMETERS, "boosting": "gbdt", "bagging_freq": 0, "seed": seed}
        return lightgbm.train(parameters, lightgbm.Dataset(seen, constant), 1)
    return lightgbm.train({**_PARAMETERS, "seed": seed}, lightgbm.Dataset(seen, labels.latency), _TREES)
