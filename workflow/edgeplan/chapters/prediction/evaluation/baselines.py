"""Fits the baselines that know a model by two numbers: FLOPs, and FLOPs with memory access cost (sections 7.1 and 7.2.1).

Each family is predicted by a linear regression over the models of all other families, as in the paper's k-fold experiment. The
third baseline of the paper, a graph network, stands in docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.reporting.metrics import FloatArray
from edgeplan.support.rounding import nine_digits_each

#: Baseline name -> the columns of models.parquet it regresses on. Both counts are the paper's: multiply-adds, and the bytes
#: of all feature maps and weights.
LINEAR_BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"flops": ("macs",), "flops_mac": ("macs", "memory_bytes")},
)


def fit_linear(features: FloatArray, latency: FloatArray) -> FloatArray:
    """Fit ordinary least squares with an intercept.

    Args:
        features: shape (n, d).
        latency: shape (n,).

    Returns:
        Coefficients to nine digits, shape (d + 1,), the intercept last.
    """
    # Counts reach 1e10 and the intercept is near 1: scaled columns keep the problem well conditioned.
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    design = np.column_stack([features / scale, np.ones(len(features))])
    solution, *_ = np.linalg.lstsq(design, latency, rcond=None)
    return nine_digits_each(np.append(solution[:-1] / scale, solution[-1]))


def leave_one_family_out(models: pd.DataFrame, columns: Sequence[str]) -> pd.Series[float]:
    """Predict every family by a linear regression over the others.

    Args:
        models: one row a model of at least two families: family, measured_ms, and the feature columns.
        columns: features, e.g. `LINEAR_BASELINES["flops"]`.

    Returns:
        Predicted latency in ms on the index of `models`; may be negative, as a line may.
    """
    features = np.column_stack([models[c].to_numpy(float) for c in columns])
    latency, group = models["measured_ms"].to_numpy(float), models["family"].to_numpy()
    predicted = np.empty(len(models))
    for name in dict.fromkeys(group):
        test = group == name
        coefficients = fit_linear(features[~test], latency[~test])
        predicted[test] = np.einsum("ij,j->i", features[test], coefficients[:-1]) + coefficients[-1]
    return pd.Series(predicted, index=models.index, dtype=np.float64)


def with_baselines(models: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of models.parquet with the columns `flops_ms` and `flops_mac_ms` of `LINEAR_BASELINES`."""
    return models.assign(**{f"{name}_ms": leave_one_family_out(models, columns) for name, columns in LINEAR_BASELINES.items()})
