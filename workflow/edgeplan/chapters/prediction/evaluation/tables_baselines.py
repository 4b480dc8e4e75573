"""Tabulates baselines beside our predictions, by family: FLOPs, FLOPs with memory, sums of operators, random forests."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.baselines import with_baselines
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import WITHIN_10, label
from edgeplan.reporting.metrics import by_group

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
