"""Tabulates whole-model prediction: the paper's Tables 1, 2, 8 and 11."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.estimates import Estimate, estimate
from edgeplan.reporting.metrics import (
    ROUNDING,
    by_group,
    relative_error,
)

#: Names of columns.
WITHIN_5, WITHIN_10 = "within 5 % (%)", "within 10 % (%)"


def label(family: str) -> str:
    """Return the paper's name of a family, or the name as it is."""
    return str(paper.printed("table_02", "family")["label"].get(paper.family_key(family), family))


def beside(table: pd.DataFrame, printed: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return a table with what the paper printed in further columns, row by row of the same key."""
    return pd.concat([table, printed.reindex(table[key].map(paper.family_key)).set_axis(table.index)], axis=1)


def table_01(evidence: Evidence) -> pd.DataFrame:
    """Return Table 1: sums of operators and of kernels of MobileNetV2, here the mean over its evaluated variants."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "operator_sum_ms")
    frame = frame[frame["family"].map(paper.family_key) == "mobilenetv2"]
    rows = []
    if len(frame):
        sums = [frame[c].to_numpy(float) for c in ("measured_ms", "operator_sum_ms", "predicted_ms")]
        errors = [100 * float(np.mean(np.abs(relative_error(sums[0], s)))) for s in sums[1:]]
        means = [float(s.mean()) for s in sums]
        rows.append((evidence.device, f"mean of {len(frame)} variants", means[0], means[1], errors[0], means[2], errors[1]))
    printed = paper.printed("table_01")
    return pd.DataFrame([*rows, *printed.itertuples(index=False, name=None)], columns=printed.columns)


def table_02(evidence: Evidence) -> pd.DataFrame:
    """Return Table 2: average FLOPs (multiply-adds) of the generated variants and the range of latencies, by family."""
    zoo, measured = evidence.zoo, evidence.models
    variants = zoo[zoo["index"] >= 0]
    printed, rows = paper.printed("table_02", "family"), []
    for family in dict.fromkeys(zoo["family"]):
        macs = variants.loc[variants["family"] == family, "macs"]
        base = zoo.loc[(zoo["family"] == family) & (zoo["index"] < 0), "macs"]
        times = measured.loc[measured["family"] == family, "measured_ms"]
        rows.append(
            {
                "family": label(family),
                "variants": len(macs),
                "FLOPs (M)": macs.mean() / 1e6,
                "base FLOPs (M)": base.iloc[0] / 1e6 if len(base) else np.nan,
                "paper: FLOPs (M)": printed["paper: FLOPs (M)"].get(paper.family_key(family), np.nan),
                "measured": len(times),
                "latency min (ms)": times.min(),
                "latency max (ms)": times.max(),
            }
        )
    return beside(pd.DataFrame(rows), printed[[f"paper {device}: latency (ms)" for device in paper.DEVICES]], "family")


def _hits(frame: pd.DataFrame, predicted: str, prefix: str = "") -> pd.DataFrame:
    """Return family, number of models, and the four metrics of Table 8 in percent or ms."""
    table = by_group(frame, predicted=predicted)
    return pd.DataFrame(
        {
            "family": table["family"],
            "models": table["models"],
            f"{prefix}RMSE (ms)": table["rmse"],
            f"{prefix}RMSPE (%)": table["rmspe"],
            f"{prefix}{WITHIN_5}": 100 * table["within_5pct"],
            f"{prefix}{WITHIN_10}": 100 * table["within_10pct"],
        }
    )


def table_08(evidence: Evidence) -> pd.DataFrame:
    """Return Table 8: end-to-end prediction by family and overall."""
    table = _hits(evidence.evaluated("measured_ms", "predicted_ms"), "predicted_ms")
    table = beside(table, paper.printed("table_08", "family"), "family")
    table["family"] = table["family"].map(label)
    return table


def table_11(evidence: Evidence) -> pd.DataFrame:
    """Return Table 11: predictors of another device on this one, and the rebuilt ones."""
    frame = evidence.transfer
    table = _hits(frame, "transferred_ms", "transferred: ")
    rebuilt = _hits(frame, "rebuilt_ms", "rebuilt: ")
    table = table.join(rebuilt.drop(columns=["family", "models"]))
    table = beside(table, paper.printed("table_11", "family"), "family")
    table["family"] = table["family"].map(label)
    return table


def within_estimate(frame: pd.DataFrame, column: str, share: float) -> Estimate:
    """Return the share of models whose value of a column lies within `share` of the measurement, with its interval."""
    hit = np.abs(relative_error(frame["measured_ms"].to_numpy(), frame[column].to_numpy())) <= share + ROUNDING
    return estimate(np.mean, hit)
