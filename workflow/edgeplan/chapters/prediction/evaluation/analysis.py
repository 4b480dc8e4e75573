"""Where predictions miss and why, as sentences computed from the tables. They diagnose; nothing is tuned by them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.grade import grade
from edgeplan.chapters.prediction.evaluation.tables_baselines import baseline_differences, baseline_verdicts, baselines
from edgeplan.chapters.prediction.evaluation.tables_fusion import MACRO, WITH_RESHAPES, table_fusion
from edgeplan.chapters.prediction.evaluation.tables_prediction import label, table_intervals
from edgeplan.reporting.metrics import FloatArray, accuracy, relative_error

_BOUND = 0.10
_FEW = 3
_GROUPS = 4
_SIGNIFICANT = 2.0
# A kind that takes less than this of the latency cannot be told from the others.
_SMALL_SHARE = 0.02
_NOMINAL = (0.85, 0.95)
#: A family whose intervals hold fewer of its measurements is named, whatever the coverage of all.
_POOR_COVERAGE = 0.8


def findings(evidence: Evidence) -> list[str]:
    """Findings in order of weight, each one sentence or a few; empty when no model was evaluated."""
    if evidence.optional("predicted_ms") is None:
        return []
    frame = evidence.evaluated("predicted_ms")
    errors = relative_error(frame["measured_ms"].to_numpy(float), frame["predicted_ms"].to_numpy(float))
    parts = [
        _overall(errors),
        *_noise(evidence),
        *_grade(evidence),
        *_repeatability(evidence),
        *_families(frame, errors),
        *_worst_models(frame, errors),
        *_by_latency(frame, errors),
        *_kinds(evidence, frame),
        *_intervals(evidence),
        *_samplers(evidence),
        *_baselines(evidence),
        *_fusion(evidence),
        *_modes(evidence),
        evidence.speed_told,
    ]
    return [part for part in parts if part]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _way(share: float) -> str:
    """A signed share in words: which way the prediction misses."""
    return f"{_percent(abs(share))} too {'slow' if share > 0 else 'fast'}"


def _overall(errors: FloatArray) -> str:
    missed = int(np.sum(np.abs(errors) > _BOUND))
    return (
        f"{missed} of {errors.size} models miss by more than 10 %. The median prediction is {_way(float(np.median(errors)))}; "
        f"half of the errors lie within {_percent(float(np.median(np.abs(errors))))}."
    )


def _noise(evidence: Evidence) -> list[str]:
    frame = evidence.optional("noise")
    if frame is None:
        return []
    noise = frame["noise"].to_numpy(float)
    text = f"The blocks of one model's measurement spread by {_percent(float(np.median(noise)))} to either side in the median"
    return [f"{text}, {_percent(float(noise.max()))} at most: the machine's noise, which no prediction can beat."]


def _grade(evidence: Evidence) -> list[str]:
    again = evidence.optional("repeat_ms", "repeat_gap_s")
    found = grade(again["measured_ms"], again["repeat_ms"], again["repeat_gap_s"]) if again is not None else None
    return [found.text] if found else []


def _repeatability(evidence: Evidence) -> list[str]:
    frame = evidence.optional("repeat_ms", "predicted_ms")
    if frame is None:
        return []
    truth, again, guess = (frame[c].to_numpy(float) for c in ("measured_ms", "repeat_ms", "predicted_ms"))
    moved = np.abs(relative_error(truth, again))
    missed = np.abs(relative_error(truth, guess)) > _BOUND
    text = f"Measured again, the same models differ by {_percent(float(np.median(moved)))} in the median and "
    text += f"{_percent(float(np.quantile(moved, 0.95)))} at the 95th percentile"
    if missed.any():
        noisy = int(np.sum(moved[missed] > _BOUND / 2))
        text += f"; {noisy} of the {int(missed.sum())} misses are models whose own measurement moved by more than 5 %"
    return [text + "."]


def _families(frame: pd.DataFrame, errors: FloatArray) -> list[str]:
    rows = []
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


def _worst_models(frame: pd.DataFrame, errors: FloatArray) -> list[str]:
    order = np.argsort(-np.abs(errors), kind="stable")[:_FEW]
    ids = frame["model_id"].tolist()
    return ["Farthest off: " + "; ".join(f"{ids[i]} {_way(float(errors[i]))}" for i in order) + "."]


def _by_latency(frame: pd.DataFrame, errors: FloatArray) -> list[str]:
    truth = frame["measured_ms"].to_numpy(float)
    groups = [g for g in np.array_split(np.argsort(truth, kind="stable"), _GROUPS) if g.size]
    missed = [float(np.mean(np.abs(errors[g]) > _BOUND)) for g in groups]
    if max(missed) == 0 or len(groups) < _GROUPS:
        return []
    i = int(np.argmax(missed))
    low, high = truth[groups[i]].min(), truth[groups[i]].max()
    return [f"Of the four latency groups, {low:.3g} to {high:.3g} ms misses most: {_percent(missed[i])} of its models."]


def kind_factors(evidence: Evidence, frame: pd.DataFrame) -> pd.DataFrame:
    """By how much each kernel kind's predicted time would have to be multiplied to explain the measured models.

    Relative least squares of the measured latencies on the predicted latencies by kind; kinds of small share are one column.

    Returns:
        Columns: kind, share (mean of the predicted latency), factor, error (one standard error); empty when there are too few
        models for the kinds.
    """
    empty = pd.DataFrame(columns=["kind", "share", "factor", "error"])
    parts = evidence.frame("breakdown", "model_id", "kind", "predicted_ms")
    wide = parts.pivot_table(index="model_id", columns="kind", values="predicted_ms", aggfunc="sum", fill_value=0.0)
    wide = wide.reindex(frame["model_id"]).dropna()
    if not len(wide):
        return empty
    share = wide.div(wide.sum(axis=1), axis=0).mean()
    kept = [k for k in wide.columns if share[k] >= _SMALL_SHARE]
    rest = [k for k in wide.columns if k not in kept]
    table = wide[kept].assign(**({"others": wide[rest].sum(axis=1)} if rest else {}))
    truth = frame.set_index("model_id")["measured_ms"].loc[wide.index].to_numpy(float)
    design = table.to_numpy(float) / truth[:, None]
    count, width = design.shape
    if count < _FEW * width or np.linalg.matrix_rank(design) < width:
        return empty
    factor, *_ = np.linalg.lstsq(design, np.ones(count), rcond=None)
    variance = float(np.sum((1 - design @ factor) ** 2)) / (count - width)
    error = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    shares = [share[k] if k in share.index else share[rest].sum() for k in table.columns]
    return pd.DataFrame({"kind": list(table.columns), "share": shares, "factor": factor, "error": error})


def _kinds(evidence: Evidence, frame: pd.DataFrame) -> list[str]:
    if not evidence.has("breakdown"):
        return []
    table = kind_factors(evidence, frame)
    off = table[np.abs(table["factor"] - 1) > _SIGNIFICANT * table["error"]]
    if not len(table):
        return []
    if not len(off):
        return ["No kernel kind is off by more than two standard errors when the models' errors are attributed to kinds."]
    weights = (off["share"] * (off["factor"] - 1).abs()).to_numpy(float)
    names, factors, errors, shares = (off[c].tolist() for c in ("kind", "factor", "error", "share"))
    texts = [
        f"{names[i]} ({_percent(shares[i])} of the latency) would have to be multiplied by {factors[i]:.3f} +- {errors[i]:.3f}"
        for i in np.argsort(-weights, kind="stable")[:_FEW]
    ]
    return ["Attributing the models' errors to kernel kinds by least squares: " + "; ".join(texts) + "."]


def _intervals(evidence: Evidence) -> list[str]:
    if evidence.optional("low_ms", "high_ms") is None:
        return []
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
    if not evidence.has("samplers"):
        return []
    ends = [f"rmspe{part}{suffix}" for part in ("", "_more_low", "_more_high") for suffix in ("", "_all")]
    table = evidence.frame("samplers", "sampler", "resolved_us", "labels", "labels_all", *ends)
    rows = {str(row["sampler"]): row for row in table.to_dict("records")}
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
    if any(evidence.optional(column) is None for column in ("macs", "memory_bytes")):
        return []
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


def _fusion(evidence: Evidence) -> list[str]:
    if not evidence.has("verification"):
        return []
    table = table_fusion(evidence)
    hits = {row["pair"]: row for row in table.to_dict("records") if row["connection"] == ""}
    texts = [
        f"{hits[name]['precision (%)']:.2f} % / {hits[name]['recall (%)']:.2f} % {how} edges at reshapes"
        for name, how in ((MACRO, "without"), (WITH_RESHAPES, "with"))
        if name in hits
    ]
    told = [f"Fusion rules against the engine's own report: precision / recall {' and '.join(texts)}."] if texts else []
    groups = table[table["connection"] != ""]
    wrong = groups[(groups["precision (%)"] < 100) | (groups["recall (%)"] < 100)]  # percent
    if not len(wrong):
        return told
    names = [f"{pair} ({connection})" for pair, connection in zip(wrong["pair"], wrong["connection"], strict=True)]
    more = f" and {len(names) - 2 * _FEW} more" if len(names) > 2 * _FEW else ""
    return [*told, f"Fusion rules disagree with the engine on {', '.join(names[: 2 * _FEW])}{more}."]


def _modes(evidence: Evidence) -> list[str]:
    frame = evidence.optional("isolated_ms", "predicted_ms")
    if frame is None:
        return []
    alone = accuracy(frame["measured_ms"], frame["isolated_ms"])
    bias = float(np.median(relative_error(frame["measured_ms"].to_numpy(float), frame["isolated_ms"].to_numpy(float))))
    return [f"Predictors of isolated kernels reach {_percent(alone.within_10pct)} within 10 %; their median is {_way(bias)}."]
