"""Trains nn-Meter's random forests (section 5.3) as the baseline: one a kind, of sizes that the paper names, on raw latency."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.predictors.nodes.features import SIZES, Floats, Table
from edgeplan.support.lazy import lazily

lightgbm = lazily("lightgbm")  # training alone needs it

#: The paper's features: configuration, FLOPs, parameters and memory; no alignment, no padding, no implementation.
_NAMES = (
    *("channels_in", "channels_out", "pixels", "window", "stride", "groups"),
    *("operands", "flops", "weights", "read", "written"),
)
_SEEN = [SIZES.index(name) for name in _NAMES]
_PARAMETERS: Mapping[str, Any] = MappingProxyType(
    {
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
    }
)
_TREES, _LEAST_ROWS = 100, 4


def forest_us(configs: Iterable[str], us: Iterable[float], models: Sequence[ExecutedModel], seed: int) -> Floats:
    """Predict models by the sums of their nodes, us (models,): NaN where a kind was not measured.

    Args:
        configs: measured nodes, as JSON.
        us: what they take.
        models: what is predicted.
        seed: of the forests.
    """
    learnt, latency = Table.of([NodeConfig.from_json(text) for text in configs]), np.array(list(us))
    asked = Table.of([node.config for model in models for node in model.nodes])
    kinds, of_row = np.array(learnt.kinds)[learnt.place], np.array(asked.kinds)
    predicted = np.full(len(of_row), np.nan)
    for kind in sorted(set(of_row.tolist())):
        at, to = np.flatnonzero(kinds == kind), np.flatnonzero(of_row == kind)
        if len(at) < _LEAST_ROWS:
            predicted[to] = latency[at].mean() if len(at) else np.nan
            continue
        data = lightgbm.Dataset(learnt.sizes[learnt.place[at]][:, _SEEN], latency[at])
        predicted[to] = lightgbm.train({**_PARAMETERS, "seed": seed}, data, _TREES).predict(asked.sizes[to][:, _SEEN])
    counts = [len(model.nodes) for model in models]
    times = np.array([node.times for model in models for node in model.nodes], np.float64)
    sums = np.bincount(np.repeat(np.arange(len(models)), counts), predicted[asked.place] * times, len(models))
    return np.asarray(sums, np.float64)
