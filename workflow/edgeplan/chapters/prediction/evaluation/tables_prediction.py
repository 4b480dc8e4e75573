"""Tabulates whole-model prediction: the paper's Tables 1, 2, 8 and 11, the ceiling and the intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.estimates import Estimate, estimate
from edgeplan.reporting.metrics import (
    OVERALL,
    ROUNDING,
    by_group,
    coverage,
    relative_error,
    relative_width,
    rmspe,
    within,
)

_SECONDS_PER_MINUTE = 60.0
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


def table_repeat(evidence: Evidence) -> pd.DataFrame:
    """Compare the errors of predictions with those of repeated measurements; all models first, with 95 % intervals.

    A second measurement is held against the first one like a prediction, on the models that have one.
    """
    frame = evidence.evaluated("repeat_ms", "repeat_gap_s", "predicted_ms")
    families = [(str(name), part) for name, part in frame.groupby("family", sort=False)]
    rows = []
    for name, part in [(OVERALL, frame), *families]:
        row: dict[str, object] = {"family": label(name), "models": len(part)}
        for what, column in (("predicted", "predicted_ms"), ("repeat", "repeat_ms")):
            off = np.abs(relative_error(part["measured_ms"].to_numpy(), part[column].to_numpy()))
            for share, within_share in ((0.1, WITHIN_10), (0.05, WITHIN_5)):
                row[f"{what}: {within_share}"] = 100 * within(part["measured_ms"], part[column], share)
            row[f"{what}: off by, median (%)"] = 100 * float(np.median(off))
            row[f"{what}: RMSPE (%)"] = rmspe(part["measured_ms"], part[column])
        row["again after, median (min)"] = part["repeat_gap_s"].median() / _SECONDS_PER_MINUTE
        rows.append(row)
    return pd.DataFrame(rows)


def repeat_note(evidence: Evidence) -> str:
    """Return the shares of all models within 10 % with their intervals, as a sentence."""
    frame, texts = evidence.evaluated("repeat_ms", "predicted_ms"), []
    for what, column in (("predicted", "predicted_ms"), ("measured twice", "repeat_ms")):
        found = within_estimate(frame, column, 0.1)
        texts.append(f"{what} {100 * found.value:.1f} % (95 %: {100 * found.low:.1f} to {100 * found.high:.1f} %)")
    return f"Within 10 %, of all models: {', '.join(texts)}."


def within_estimate(frame: pd.DataFrame, column: str, share: float) -> Estimate:
    """Return the share of models whose value of a column lies within `share` of the measurement, with its interval."""
    hit = np.abs(relative_error(frame["measured_ms"].to_numpy(), frame[column].to_numpy())) <= share + ROUNDING
    return estimate(np.mean, hit)


def table_intervals(evidence: Evidence) -> pd.DataFrame:
    """Tabulate coverage and median relative width of the 90 % intervals, by family and overall."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "low_ms", "high_ms")
    parts = [(str(n), p) for n, p in frame.groupby("family", sort=False)]
    rows = []
    for name, part in [*parts, (OVERALL, frame)]:
        truth, guess, low, high = (part[c].to_numpy(float) for c in ("measured_ms", "predicted_ms", "low_ms", "high_ms"))
        below, above = float(np.mean(truth < low)), float(np.mean(truth > high))
        width = relative_width(guess, low, high)
        rows.append((label(name), len(part), 100 * coverage(truth, low, high), 100 * below, 100 * above, 100 * width))
    names = ["family", "models", "inside (%)", "below (%)", "above (%)", "median width (% of the prediction)"]
    return pd.DataFrame(rows, columns=names)


def calibration_note(evidence: Evidence) -> str:
    """Return a sentence on what the size of the intervals is calibrated on."""
    count = evidence.interval["subjects"]
    if evidence.interval["quantile_of"] == "carriers":
        return f"So is how wide it is, on {count} of them: whole models were too few."
    return (
        f"How wide it is was calibrated on {count} whole models of a seed of their own (stage calibration), as many of each "
        "family, none of them evaluated, by factors of kinds fitted on others of them: nothing else of a predictor saw them. "
        "That sets the share inside over all models like them, to "
        "within a few percent by the chance of which were drawn; it sets that of no single family."
    )
