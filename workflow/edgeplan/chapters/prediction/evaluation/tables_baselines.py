"""Tabulates baselines beside our predictions, by family: FLOPs, FLOPs with memory, sums of operators, random forests."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.baselines import with_baselines
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import WITHIN_10, label
from edgeplan.reporting.metrics import OVERALL, by_group, relative_error, rmspe
from edgeplan.reporting.uncertainty import rmspe_difference

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
#: Those that a prediction is to beat on every family.
BASELINES = ("FLOPs", "FLOPs+MAC", "operator sum")
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


def baseline_verdicts(table: pd.DataFrame) -> pd.DataFrame:
    """Tell whether FLOPs, FLOPs+MAC and operator sum are beaten on every family: +-10 % accuracy never higher, RMSPE lower.

    Args:
        table: from `baselines` or `table_baselines`.

    Returns:
        One row a baseline that was evaluated: baseline, higher_within (families where its +-10 % accuracy is higher),
        not_worse_rmspe (families where its RMSPE is not higher than ours); both empty strings when it is beaten throughout.
    """
    families = table[~table["family"].isin([OVERALL, _PAPER_ROW])]
    rows = []
    for name in BASELINES:
        if f"{name}: RMSPE (%)" not in table.columns:
            continue
        higher = families[f"{name}: {WITHIN_10}"] > families[f"ours: {WITHIN_10}"]
        lower = families[f"{name}: RMSPE (%)"] <= families["ours: RMSPE (%)"]
        rows.append((name, ", ".join(families["family"][higher]), ", ".join(families["family"][lower])))
    return pd.DataFrame(rows, columns=["baseline", "higher_within", "not_worse_rmspe"])


def baseline_differences(evidence: Evidence) -> pd.DataFrame:
    """Compute how far each baseline is behind ours on each family, with intervals.

    Returns:
        One row a baseline that was evaluated and a family: baseline, family, ours and theirs (RMSPE, percent), low and high
        (95 % interval of theirs less ours, percentage points), p and clear (see `Difference`), bias and their_bias (median
        signed error, percent), longer (by how much theirs are longer than ours in the median, percent).
    """
    frame = _evaluated(evidence)
    rows = []
    for name in BASELINES:
        column = PREDICTORS[name]
        if column not in frame.columns or not frame[column].notna().all():
            continue
        for family, part in frame.groupby("family", sort=False):
            truth, ours, theirs = (part[c].to_numpy(float) for c in ("measured_ms", "predicted_ms", column))
            difference = rmspe_difference(truth, ours, theirs, part["model_id"])
            errors = [100 * float(np.median(relative_error(a, b))) for a, b in ((truth, ours), (truth, theirs), (ours, theirs))]
            found = (difference.low, difference.high, difference.p, difference.clear)
            rows.append((name, str(family), rmspe(truth, ours), rmspe(truth, theirs), *found, *errors))
    names = ["baseline", "family", "ours", "theirs", "low", "high", "p", "clear", "bias", "their_bias", "longer"]
    return pd.DataFrame(rows, columns=names)


def table_baseline_differences(evidence: Evidence) -> pd.DataFrame:
    """Return `baseline_differences` for readers, with the verdict of each row."""
    table = baseline_differences(evidence)
    ahead = np.where(table["theirs"] <= table["ours"], "baseline", "ours")
    return pd.DataFrame(
        {
            "baseline": table["baseline"],
            "family": table["family"].map(label),
            "ours: RMSPE (%)": table["ours"],
            "baseline: RMSPE (%)": table["theirs"],
            "difference, 95 % from (points)": table["low"],
            "to (points)": table["high"],
            "p": table["p"],
            "ahead": np.where(table["clear"], ahead, "not told apart"),
            "ours: median error (%)": table["bias"],
            "baseline: median error (%)": table["their_bias"],
            "baseline longer than ours, median (%)": table["longer"],
        }
    )
