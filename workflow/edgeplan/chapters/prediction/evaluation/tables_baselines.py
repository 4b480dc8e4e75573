"""Tabulates baselines beside our predictions, by family: FLOPs, FLOPs with memory, sums of operators, random forests.

Those of FLOPs know a model by one number or two (sections 7.1 and 7.2.1): each family is predicted by a linear regression over
the models of all other families, as in the paper's k-fold experiment. The third baseline of the paper, a graph network, stands
in docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import WITHIN_10, label
from edgeplan.reporting.metrics import FloatArray, by_group
from edgeplan.support.rounding import nine_digits_each

#: Name of a predictor in tables -> its column in the evaluated variants; the linear baselines are computed here.
PREDICTORS = {
    "ours": "predicted_ms",
    "family left out": "left_out_ms",
    "plain sum": "plain_sum_ms",
    "random forest": "forest_ms",
    "operator sum": "operator_sum_ms",
    "FLOPs": "flops_ms",
    "FLOPs+MAC": "flops_mac_ms",
}
_PAPER_ROW = "paper (see caption)"
#: Baseline name -> the columns of models.parquet it regresses on. Both counts are the paper's: multiply-adds, and the bytes
#: of all feature maps and weights.
LINEAR_BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"flops": ("macs",), "flops_mac": ("macs", "memory_bytes")},
)


def _evaluated(evidence: Evidence) -> pd.DataFrame:
    """Return evaluated variants with the predictions of the linear baselines, where there are families to leave out."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "macs", "memory_bytes")
    return with_baselines(frame) if len(frame["family"].unique()) > 1 else frame


def baselines(evidence: Evidence) -> pd.DataFrame:
    """Return every predictor's +-10 % accuracy and RMSPE by family, in percent; NaN where a predictor was not evaluated.

    Returns:
        Columns: family (this project's name, or "all"), models, and for each of `PREDICTORS` its two metrics.
    """
    frame = _evaluated(evidence)
    table = by_group(frame)[["family", "models"]]
    for name, column in PREDICTORS.items():
        if column not in frame.columns or not frame[column].notna().all():
            continue
        hits = by_group(frame, predicted=column)
        table[f"{name}: {WITHIN_10}"] = 100 * hits["within_10pct"]
        table[f"{name}: RMSPE (%)"] = hits["rmspe"]
    return table


def table_baselines(evidence: Evidence) -> pd.DataFrame:
    """Tabulate baselines by family, with the paper's means over five families and three devices (Fig. 9) as last row."""
    table = baselines(evidence)
    published = {"ours": "ours", "FLOPs": "flops", "FLOPs+MAC": "flops_mac"}
    row: dict[str, object] = {f"{ours}: {WITHIN_10}": paper.FIGURE_9[key] for ours, key in published.items()}
    row[f"operator sum: {WITHIN_10}"] = paper.FIGURE_11_OPERATOR
    table["family"] = table["family"].map(label)
    last = pd.DataFrame([{c: row.get(c, np.nan) for c in table.columns} | {"family": _PAPER_ROW}])
    return pd.concat([table.astype({"models": float}), last], ignore_index=True)


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
