"""Tells where predictions miss and why, as sentences computed from the tables. They diagnose; nothing is tuned by them."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_baselines import baseline_differences, baseline_verdicts, baselines
from edgeplan.chapters.prediction.evaluation.tables_prediction import label, table_intervals
from edgeplan.reporting.kit import NotMeasuredError
from edgeplan.reporting.metrics import FloatArray, relative_error

_BOUND = 0.10
_FEW = 3
_NOMINAL = (0.85, 0.95)
#: A family whose intervals hold fewer of its measurements is named, whatever the coverage of all.
_POOR_COVERAGE = 0.8


def findings(evidence: Evidence, *_: object) -> list[str]:
    """Return the findings in order of weight, each one sentence or a few; empty when no model was evaluated."""
    told: list[str] = []
    for part in (_overall, _repeatability, _families, _worst_models, _intervals, _samplers, _baselines):
        with suppress(NotMeasuredError):
            told += part(evidence)
    return [*told, evidence.speed_told] if told and evidence.speed_told else told


def _errors(evidence: Evidence) -> tuple[pd.DataFrame, FloatArray]:
    frame = evidence.evaluated("measured_ms", "predicted_ms")
    return frame, relative_error(frame["measured_ms"], frame["predicted_ms"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _way(share: float) -> str:
    """Return a signed share in words: which way the prediction misses."""
    return f"{_percent(abs(share))} too {'slow' if share > 0 else 'fast'}"


def _overall(evidence: Evidence) -> list[str]:
    _, errors = _errors(evidence)
    missed = int(np.sum(np.abs(errors) > _BOUND))
    text = (
        f"{missed} of {errors.size} models miss by more than 10 %. The median prediction is {_way(float(np.median(errors)))}; "
    )
    return [text + f"half of the errors lie within {_percent(float(np.median(np.abs(errors))))}."]


def _repeatability(evidence: Evidence) -> list[str]:
    frame = evidence.evaluated("repeat_ms", "predicted_ms")
    truth, again, guess = (frame[c].to_numpy(float) for c in ("measured_ms", "repeat_ms", "predicted_ms"))
    moved = np.abs(relative_error(truth, again))
    missed = np.abs(relative_error(truth, guess)) > _BOUND
    text = f"Measured again, the same models differ by {_percent(float(np.median(moved)))} in the median and "
    text += f"{_percent(float(np.quantile(moved, 0.95)))} at the 95th percentile"
    if missed.any():
        noisy = int(np.sum(moved[missed] > _BOUND / 2))
        text += f"; {noisy} of the {int(missed.sum())} misses are models whose own measurement moved by more than 5 %"
    return [text + "."]


def _families(evidence: Evidence) -> list[str]:
    (frame, errors), rows = _errors(evidence), []
    for family, part in pd.Series(errors).groupby(frame["family"].to_numpy(), sort=False):
        values = part.to_numpy(float)
        missed = float(np.mean(np.abs(values) > _BOUND))
        if missed > 0:
            rows.append((missed, str(family), values))
    rows.sort(key=lambda row: (-row[0], row[1]))
    texts = []
    for missed, name, values in rows[:_FEW]:
        middle = float(np.median(values))
        low, high = np.quantile(values, (0.25, 0.75))
        # A bias of more than the half width of the middle half is the same error in most models, not scatter.
        nature = "a bias" if abs(middle) > (high - low) / 2 else "scatter rather than bias"
        texts.append(
            f"{label(name)}: {_percent(missed)} miss; the median is {_way(middle)}, the middle half spans "
            f"{_percent(high - low)}: {nature}."
        )
    return texts


def _worst_models(evidence: Evidence) -> list[str]:
    frame, errors = _errors(evidence)
    order = np.argsort(-np.abs(errors), kind="stable")[:_FEW]
    ids = frame["model_id"].tolist()
    return ["Farthest off: " + "; ".join(f"{ids[i]} {_way(float(errors[i]))}" for i in order) + "."]


def _intervals(evidence: Evidence) -> list[str]:
    table = table_intervals(evidence)
    names, inside, below, above, width = (table.iloc[:, i].tolist() for i in (0, 2, 3, 4, 5))
    low, high = (100 * bound for bound in _NOMINAL)
    texts = []
    if not low <= inside[-1] <= high:
        way = "wide" if inside[-1] > high else "narrow"
        texts.append(f"The 90 % intervals hold {inside[-1]:.1f} % of the measurements: they are too {way}.")
    poor = [
        f"{names[i]} ({inside[i]:.1f} % inside, {below[i]:.1f} % below and {above[i]:.1f} % above, "
        f"median width {width[i]:.1f} %)"
        for i in range(len(table) - 1)
        if inside[i] < 100 * _POOR_COVERAGE
    ]
    if poor:
        bound = f"{100 * _POOR_COVERAGE:.0f} %"
        texts.append(f"The 90 % intervals hold fewer than {bound} of the measurements of {'; '.join(poor)}.")
    return texts


def _samplers(evidence: Evidence) -> list[str]:
    rows = {str(row["sampler"]): row for row in evidence.samplers.to_dict("records")}
    others = [name for name in ("random", "prior") if name in rows]
    if "adaptive" not in rows or not others:
        return []
    found = []
    sets = {"": f"that are at least {rows['adaptive']['resolved_us']:g} us", "_all": "there are"}
    for suffix, which in sets.items():
        ours, *theirs = (float(rows[name][f"rmspe{suffix}"]) for name in ("adaptive", *others))
        if not np.isfinite(ours):
            continue
        texts = []
        for name, error in zip(others, theirs, strict=True):
            low, high = (float(rows[name][f"rmspe_more_{end}{suffix}"]) for end in ("low", "high"))
            known = f"; its error less the adaptive one's: {low:.1f} to {high:.1f} points at 95 %" if np.isfinite(low) else ""
            way = "lower" if ours < error else "higher"
            texts.append(f"{abs(1 - ours / error):.0%} {way} than {name} ({error:.1f} %{known})")
        verdict = "the lowest" if ours < min(theirs) else "not the lowest"
        labels = f"all {rows['adaptive'][f'labels{suffix}']:.0f} {which}"
        found.append(f"on {labels} {ours:.1f} %, {' and '.join(texts)}: {verdict}")
    return ["Adaptive sampling, conv RMSPE on frozen labels: " + "; ".join(found) + "."] if found else []


def _baselines(evidence: Evidence) -> list[str]:
    texts = []
    differences = baseline_differences(evidence)
    for baseline, higher, lower in baseline_verdicts(baselines(evidence)).itertuples(index=False, name=None):
        if higher or lower:
            where = [f"a higher +-10 % accuracy on {higher}"] if higher else []
            where += [f"an RMSPE no higher than ours on {lower}"] if lower else []
            ahead = differences["clear"] & (differences["theirs"] < differences["ours"])
            clear = differences.loc[ahead & (differences["baseline"] == baseline), "family"]
            sure = f"only on {', '.join(clear)}" if len(clear) else "on no family"
            texts.append(
                f"{baseline} is not beaten everywhere: {' and '.join(where)}; {sure} a paired test of the models' squared "
                "errors tells that it is ahead (p < .05)."
            )
    return texts
