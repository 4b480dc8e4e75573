"""metrics.json: the flat figures that experiments are compared by, and the bars they are held against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.grade import grade
from edgeplan.chapters.prediction.evaluation.tables_prediction import within_estimate
from edgeplan.chapters.prediction.evaluation.tables_sampling import kernel_minutes
from edgeplan.chapters.prediction.fusion.verification import averages
from edgeplan.errors import FormatError
from edgeplan.reporting.bars import Bar, interval_keys
from edgeplan.reporting.metrics import accuracy, coverage, relative_width
from edgeplan.support.files import write_json

#: Samplers that are compared; figures are named in this order.
SAMPLERS = ("adaptive", "random", "prior")


def _with_ends(*keys: str) -> list[str]:
    return [name for key in keys for name in (key, *interval_keys(key))]


#: The keys of metrics.json; a figure whose inputs are missing is left out. Shares and relative errors are 0..1.
#: `fusion.*` leaves out edges at reshapes, `fusion.*_all` does not; batch-norm folding is in neither.
#: `measuring.grade` is good, fair or poor (`grade.Grade`), `measuring.repeat_deviation` the median by which repeats differ.
#: `measuring.noise_*` is over the evaluated models: half the range of the normalised blocks of one, relative to their median.
#: `sampling.*_error` is the conv RMSPE on frozen labels of at least `sampling.resolved_us` us, `sampling.*_error_all` on all.
KEYS = (
    *_with_ends("prediction.within_10pct", "prediction.within_5pct"),
    "prediction.plain_sum_within_10pct",
    "prediction.plain_sum_within_5pct",
    "prediction.left_out_within_10pct",
    "prediction.left_out_within_5pct",
    *_with_ends("prediction.repeat_within_10pct", "prediction.repeat_within_5pct"),
    "prediction.models",
    "measuring.kernel_minutes",
    "measuring.noise_median",
    "measuring.noise_max",
    "measuring.grade",
    "measuring.repeat_deviation",
    "sampling.resolved_us",
    *(f"sampling.{sampler}_error{suffix}" for suffix in ("", "_all") for sampler in SAMPLERS),
    "fusion.precision",
    "fusion.recall",
    "fusion.precision_all",
    "fusion.recall_all",
    "fusion.precision_with_prior",
    "fusion.recall_with_prior",
    "interval.coverage_90",
    "interval.width_90",
    "speed.predict_process_s",
    "speed.predict_call_ms",
    "speed.batch_26000_s",
    "speed.tables_26000_s",
)


_BARS = (
    Bar("prediction.within_10pct", "whole models within 10 %", low=0.96, aim=">= 99 %"),
    Bar("prediction.within_5pct", "whole models within 5 %", low=0.75, aim=">= 90 %"),
    Bar("prediction.plain_sum_within_10pct", "within 10 % by plain sums, without factors of kinds", low=0.96, aim=">= 99 %"),
    Bar("prediction.plain_sum_within_5pct", "within 5 % by plain sums, without factors of kinds", low=0.75, aim=">= 90 %"),
    Bar("prediction.models", "models evaluated", low=260),
    Bar("measuring.kernel_minutes", "kernel measuring time (min)", high=20, aim="<= 10"),
    Bar("fusion.precision", "fusion rules: precision, without reshapes", low=0.95, aim="100 %"),
    Bar("fusion.recall", "fusion rules: recall, without reshapes", low=0.95, aim="100 %"),
    Bar("fusion.precision_all", "fusion rules: precision, with reshapes", low=0.95, aim="100 %"),
    Bar("fusion.recall_all", "fusion rules: recall, with reshapes", low=0.95, aim="100 %"),
    Bar("interval.coverage_90", "interval coverage at 90 % nominal", low=0.85, high=0.95),
    Bar("speed.predict_process_s", "edgeplan predict, whole process (s)", high=2, aim="<= 1"),
    Bar("speed.predict_call_ms", "edgeplan predict, call (ms)", high=50, aim="<= 20"),
    Bar("speed.batch_26000_s", "26,000 predictions (s)", high=60, aim="<= 10"),
    Bar("speed.tables_26000_s", "specs and kernel tables of 26,000 models (s)", high=300),
)
_WITHIN_10_BY_DEVICE: Mapping[str, float] = MappingProxyType({"cpu-openvino": 0.95})


def sampling_bars(metrics: Mapping[str, float]) -> list[tuple[str, list[float]]]:
    """The comparison of samplers on each set of frozen labels: its title, and the errors of `SAMPLERS`, ours first.

    Both sets are shown, since the verdict may differ between them. A set without all errors is left out.
    """
    found = []
    sets = {"": f"labels of at least {metrics.get('sampling.resolved_us', math.nan):g} us", "_all": "all labels"}
    for suffix, which in sets.items():
        keys = [f"sampling.{name}_error{suffix}" for name in SAMPLERS]
        if all(key in metrics for key in keys):
            found.append((f"conv RMSPE on {which} of the frozen set: {', '.join(SAMPLERS)}", [metrics[key] for key in keys]))
    return found


def bars(device: str) -> tuple[Bar, ...]:
    """The bars of a device, one for each figure that has one."""
    low = _WITHIN_10_BY_DEVICE.get(device)
    if low is None:
        return _BARS
    return tuple(replace(bar, low=low) if bar.key.endswith("within_10pct") else bar for bar in _BARS)


def _prediction(evidence: Evidence) -> dict[str, float]:
    values: dict[str, float] = {}
    if not evidence.has("models") or "predicted_ms" not in evidence.frame("models").columns:
        return values
    frame = evidence.evaluated("predicted_ms")
    hit = accuracy(frame["measured_ms"], frame["predicted_ms"])
    values |= {"prediction.within_10pct": hit.within_10pct, "prediction.within_5pct": hit.within_5pct}
    values["prediction.models"] = hit.models
    noise = evidence.optional("noise")
    if noise is not None:
        values["measuring.noise_median"], values["measuring.noise_max"] = noise["noise"].median(), noise["noise"].max()
    for name, column in (("plain_sum", "plain_sum_ms"), ("left_out", "left_out_ms"), ("repeat", "repeat_ms")):
        other = evidence.optional(column)
        if other is not None:
            hit = accuracy(other["measured_ms"], other[column])
            values[f"prediction.{name}_within_10pct"] = hit.within_10pct
            values[f"prediction.{name}_within_5pct"] = hit.within_5pct
    for name, column in (("", "predicted_ms"), ("repeat_", "repeat_ms")):
        if (other := evidence.optional(column)) is not None:
            for percent in (5, 10):
                key, found = f"prediction.{name}within_{percent}pct", within_estimate(other, column, percent / 100)
                values |= dict(zip(interval_keys(key), (found.low, found.high), strict=True))
    spans = evidence.optional("low_ms", "high_ms", "predicted_ms")
    if spans is not None:
        values["interval.coverage_90"] = coverage(spans["measured_ms"], spans["low_ms"], spans["high_ms"])
        values["interval.width_90"] = relative_width(spans["predicted_ms"], spans["low_ms"], spans["high_ms"])
    return values


def _grade(evidence: Evidence) -> dict[str, float | str]:
    again = evidence.optional("repeat_ms", "repeat_gap_s")
    found = grade(again["measured_ms"], again["repeat_ms"], again["repeat_gap_s"]) if again is not None else None
    return {"measuring.grade": found.name, "measuring.repeat_deviation": found.median} if found else {}


def metrics(evidence: Evidence) -> dict[str, float | str]:
    """The figures of `KEYS` that the inputs give, the grade of the machine among them; a missing input is an absent key."""
    values: dict[str, float | str] = {**_prediction(evidence), **_grade(evidence)}
    if evidence.has("sampling") and evidence.sampling is not None:
        values["measuring.kernel_minutes"] = kernel_minutes(evidence.sampling, evidence.calibration)
    if evidence.has("samplers"):
        table = evidence.frame("samplers", "sampler", "rmspe", "rmspe_all", "resolved_us").set_index("sampler")
        values["sampling.resolved_us"] = float(table["resolved_us"].iloc[0])
        for name in table.index.intersection(list(SAMPLERS)):
            for suffix in ("", "_all"):
                values[f"sampling.{name}_error{suffix}"] = float(table.loc[name, f"rmspe{suffix}"]) / 100
    if evidence.has("verification"):
        apart = ("bn_folding", "reshaping")
        rows = evidence.frame("verification", "fused_by_engine", "fused_by_rules", "precision", "recall", *apart)
        rows = rows.astype(dict.fromkeys(apart, bool))
        for suffix, judged in (("", rows), ("_all", rows.assign(reshaping=False))):
            counted = ~judged["bn_folding"] & ~judged["reshaping"]
            if (judged.loc[counted, ["fused_by_engine", "fused_by_rules"]] > 0).to_numpy().any():
                values[f"fusion.precision{suffix}"], values[f"fusion.recall{suffix}"] = averages(judged)
        if {"fused_with_prior", "true_with_prior"} <= set(evidence.frame("verification").columns):
            known = evidence.frame("verification", "fused_with_prior", "true_with_prior")
            rows = rows.assign(
                fused_by_rules=known["fused_with_prior"],
                precision=known["true_with_prior"] / known["fused_with_prior"].where(known["fused_with_prior"] > 0),
                recall=known["true_with_prior"] / rows["fused_by_engine"].where(rows["fused_by_engine"] > 0),
            )
            values["fusion.precision_with_prior"], values["fusion.recall_with_prior"] = averages(rows)
    values |= {f"speed.{name}": float(value) for name, value in evidence.speed.items() if f"speed.{name}" in KEYS}
    return {key: values[key] for key in KEYS if key in values and _known(values[key])}


def _known(value: float | str) -> bool:
    return isinstance(value, str) or math.isfinite(value)


def write_metrics(values: Mapping[str, float | str], path: Path) -> None:
    """Write metrics.json atomically: sorted keys, six significant digits.

    Raises:
        FormatError: a key is not of `KEYS`, or a value is not finite.
    """
    wrong = [key for key, value in values.items() if key not in KEYS or not _known(value)]
    if wrong:
        raise FormatError(
            f"not figures of metrics.json, or not finite: {', '.join(wrong)}", where=str(path), next_step="correct the caller"
        )
    rounded = {k: v if isinstance(v, str) else float(f"{v:.6g}") for k, v in sorted(values.items())}
    write_json(path, rounded)
