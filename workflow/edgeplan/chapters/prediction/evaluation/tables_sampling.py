"""Tables of sampling and of the predictors: the paper's Tables 5, 6, 7, 9, 10 and 12, measuring modes, configurations seen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import alexnet_within
from edgeplan.errors import FormatError
from edgeplan.graph.kernels import CONTEXT, without_context
from edgeplan.predictors.training_rows import trained_on
from edgeplan.reporting.environment import flat_environment
from edgeplan.reporting.metrics import accuracy, require

#: Parts of the measuring time that serve a comparison or a check, not the predictors.
NOT_BEHIND_PREDICTORS = frozenset({"frozen", "sweep", "conv_check", "isolated", "excess"})

# What the paper's configuration (HW, K, S, Cin, Cout) leaves out.
_BEYOND_SHAPE = ("type", "activation", "bias", "residual", *CONTEXT)
_SECONDS_PER_MINUTE = 60.0


def _listed(values: set[int]) -> str:
    return ", ".join(str(v) for v in sorted(values, reverse=True))


def table_05(evidence: Evidence) -> pd.DataFrame:
    """Table 5: the sample space of Conv that the prior models span."""
    prior = evidence.frame("prior", "kind", "config")
    configs = [json.loads(text) for text in prior.loc[prior["kind"] == "conv", "config"]]
    if not configs:
        raise FormatError("the prior holds no conv", where="table `prior`", next_step="rebuild the zoo")

    def values(name: str) -> set[int]:
        return {int(config.get(name, 1)) for config in configs}

    sizes, kernels, strides = values("in_height"), values("kernel_h"), values("stride_h")
    inputs, outputs = values("in_channels"), values("out_channels")
    space = len(sizes) * len(kernels) * len(strides) * (max(inputs) - min(inputs) + 1) * (max(outputs) - min(outputs) + 1)
    ours = {
        "input HW": _listed(sizes),
        "kernel size": ", ".join(str(k) for k in sorted(kernels)),
        "stride": ", ".join(str(s) for s in sorted(strides)),
        "Cin": f"{min(inputs)} - {max(inputs)}",
        "Cout": f"{min(outputs)} - {max(outputs)}",
        "configurations": f"{space / 1e9:.2g} billion ({len(configs)} distinct in the prior models)",
    }
    return pd.DataFrame(
        [(name, ours[name], paper.TABLE_5[name]) for name in paper.TABLE_5], columns=["dimension", "ours", "paper"]
    )


def training_rows(evidence: Evidence) -> pd.DataFrame:
    """The labelled kernels that the predictors learn from (see `edgeplan.predictors.training_rows`)."""
    rows = evidence.frame("kernels", "kind", "config", "sampler")
    return rows[trained_on(rows, (evidence.sampling or {}).get("mode"))]


def table_06(evidence: Evidence) -> pd.DataFrame:
    """Table 6: kernels, features and the rows that the predictors learn from, by whichever sampler."""
    trained = training_rows(evidence)
    counts = trained["kind"].value_counts()
    distinct = trained.groupby("kind")["config"].nunique()
    order = [k for k in paper.TABLES_6_9 if k in counts or k == "se"]
    order += [k for k in sorted(counts.index) if k not in order]
    rows = []
    for kind in order:
        published = paper.TABLES_6_9.get(kind)
        rows.append(
            {
                "kernel": kind,
                "features": ", ".join(evidence.features.get(kind, ())),
                "rows": int(counts.get(kind, 0)),
                "configurations": int(distinct.get(kind, 0)),
                "paper kernel": published.name if published else "",
                "paper features": published.features if published else "",
            }
            | {f"paper {d}: rows": published.rows.get(d, np.nan) if published else np.nan for d in paper.DEVICES}
        )
    table = pd.DataFrame(rows)
    return table if evidence.features else table.drop(columns="features")


def table_07(evidence: Evidence) -> pd.DataFrame:
    """Table 7: the device, beside the paper's."""
    flat = flat_environment(evidence.environment or {})

    def first(*names: str) -> str:
        found = [flat[k] for name in names for k in flat if k == name or k.endswith(f".{name}")]
        return str(found[0]) if found else ""

    engine, version = first("engine", "engine_name"), first("engine_version")
    ours = (
        evidence.device,
        f"{first('cores')} cores, {first('memory_gib')} GiB",
        first("cpu", "cpu_model", "model_name", "processor"),
        f"{engine} {version}".strip(),
        first("threads"),
    )
    rows = [ours, *((f"paper {d}", name, processor, framework, "") for d, name, processor, framework in paper.TABLE_7)]
    return pd.DataFrame(rows, columns=["device", "machine", "processor", "framework", "threads"])


def _resolved_us(evidence: Evidence) -> float | None:
    """The least label, in us, of those that samplers are also compared on alone; None where none were compared."""
    return float(evidence.frame("samplers", "resolved_us")["resolved_us"].iloc[0]) if evidence.has("samplers") else None


def table_09(evidence: Evidence) -> pd.DataFrame:
    """Table 9: held-out kernels by kind and split, LightGBM and random forest."""
    frame = evidence.frame("quality", "kind", "measured_us", "predicted_us", "split")
    forest, least = "forest_us" in frame.columns, _resolved_us(evidence)
    rows = []
    for (split, kind), part in frame.groupby(["split", "kind"], sort=True):
        hit = accuracy(part["measured_us"], part["predicted_us"])
        row: dict[str, Any] = {"split": split, "kernel": kind, "rows": len(part)}
        row |= {"RMSE (ms)": hit.rmse / 1e3, "RMSPE, all labels (%)": hit.rmspe}
        if least is not None:
            clear = part[part["measured_us"] >= least]
            error = accuracy(clear["measured_us"], clear["predicted_us"]).rmspe if len(clear) else np.nan
            row[f"RMSPE, labels >= {least:g} us (%)"] = error
        row["within 10 % (%)"] = 100 * hit.within_10pct
        known = part[part["forest_us"].notna()] if forest else part.iloc[:0]
        if len(known):
            other = accuracy(known["measured_us"], known["forest_us"])
            row |= {"forest: RMSE (ms)": other.rmse / 1e3, "forest: RMSPE (%)": other.rmspe}
            row["forest: within 10 % (%)"] = 100 * other.within_10pct
        rows.append(row | _published_quality(str(kind)))
    missing = [kind for kind in paper.TABLES_6_9 if kind not in set(frame["kind"])]
    rows += [{"split": "paper only", "kernel": kind, **_published_quality(kind)} for kind in missing]
    return pd.DataFrame(rows)


def _published_quality(kind: str) -> dict[str, float]:
    published = paper.TABLES_6_9.get(kind)
    found: dict[str, float] = {}
    for device in paper.DEVICES:
        cell = published.quality.get(device) if published else None
        found[f"paper {device}: RMSE (ms)"], found[f"paper {device}: within 10 % (%)"] = cell or (np.nan, np.nan)
    return found


def table_10(evidence: Evidence) -> pd.DataFrame:
    """Table 10: the conv predictor by sampler on the frozen set, and whole models with that Conv predictor among ours."""
    names = ("rmse_ms", "rmspe", "rmspe_more_low", "rmspe_more_high", "within_10pct")
    judged = [f"{name}{suffix}" for suffix in ("", "_all") for name in names]
    samplers = evidence.frame("samplers", "sampler", "rows", "seconds", "resolved_us", *judged)
    sets = {"": f"labels >= {_resolved_us(evidence):g} us", "_all": "all labels"}
    rows = []
    for cell in samplers.to_dict("records"):
        name = str(cell["sampler"])
        column = f"{name}_sampling_ms"
        models = evidence.optional(column)
        alexnet = alexnet_within(evidence, column)
        row: dict[str, Any] = {
            "sampler": name,
            "rows": cell["rows"],
            "minutes": cell["seconds"] / _SECONDS_PER_MINUTE,
        }
        for suffix, which in sets.items():
            errors = samplers[f"rmspe{suffix}"]
            lowest = "" if errors.notna().sum() <= 1 else "yes" if cell[f"rmspe{suffix}"] == errors.min() else "no"
            row |= {
                f"conv RMSE, {which} (ms)": cell[f"rmse_ms{suffix}"],
                f"conv RMSPE, {which} (%)": cell[f"rmspe{suffix}"],
                f"lowest, {which}": lowest,
                f"over adaptive, {which}, from (points)": cell[f"rmspe_more_low{suffix}"],
                f"to, {which} (points)": cell[f"rmspe_more_high{suffix}"],
                f"conv within 10 %, {which} (%)": 100 * cell[f"within_10pct{suffix}"],
            }
        row |= {
            "models within 10 % (%)": np.nan
            if models is None
            else 100 * accuracy(models["measured_ms"], models[column]).within_10pct,
            "AlexNets within 10 % (%)": np.nan if alexnet is None else 100 * alexnet,
        }
        for device in paper.DEVICES:
            error, share = paper.TABLE_10.get(name, {}).get(device, (np.nan, np.nan))
            row[f"paper {device}: conv RMSE (ms)"], row[f"paper {device}: conv within 10 % (%)"] = error, share
        published = {"random": paper.ALEXNET_RANDOM["CPU"], "adaptive": paper.TABLE_8["alexnet"]["CPU"].within_10pct}
        row["paper CPU: AlexNets within 10 % (%)"] = published.get(name, np.nan)
        rows.append(row)
    return pd.DataFrame(rows)


def measuring_seconds(sampling: Mapping[str, Any]) -> dict[str, float]:
    """Wall-clock seconds by part, without a total.

    Raises:
        FormatError: the document has no `seconds`, or a part is no positive number.
    """
    seconds = sampling.get("seconds")
    if not isinstance(seconds, Mapping) or not seconds:
        raise FormatError(
            "the sampling document has no `seconds`", where="sampling.json", next_step="run the sampling stage again"
        )
    parts = {str(k): float(v) for k, v in seconds.items() if k != "total"}
    wrong = [k for k, v in parts.items() if not (math.isfinite(v) and v >= 0)]
    if wrong:
        raise FormatError(
            f"the seconds of {', '.join(wrong)} are no time", where="sampling.json", next_step="run the sampling stage again"
        )
    return parts


def _calibrating_seconds(calibration: pd.DataFrame | None) -> dict[str, float]:
    if calibration is None:
        return {}
    require(calibration, ("seconds",), "table `calibration`")
    return {"calibration": float(calibration["seconds"].sum())}


def kernel_minutes(sampling: Mapping[str, Any], calibration: pd.DataFrame | None = None) -> float:
    """Minutes of measuring behind the predictors: all parts but the frozen test set and what only compares.

    Args:
        sampling: the sampler's document.
        calibration: the whole models that set the factors of kinds and the intervals: seconds.
    """
    parts = measuring_seconds(sampling) | _calibrating_seconds(calibration)
    return sum(v for k, v in parts.items() if k not in NOT_BEHIND_PREDICTORS) / _SECONDS_PER_MINUTE


def table_12(evidence: Evidence) -> pd.DataFrame:
    """Table 12: measuring cost in minutes, by part."""
    if evidence.sampling is None:
        raise FormatError("the sampling document is missing", where="Table 12", next_step="run the sampling stage")
    parts = measuring_seconds(evidence.sampling) | _calibrating_seconds(evidence.calibration)
    rows: list[tuple[str, str, float]] = [
        (k, "no" if k in NOT_BEHIND_PREDICTORS else "yes", v / _SECONDS_PER_MINUTE) for k, v in parts.items()
    ]
    rows.append(("total behind the predictors", "yes", kernel_minutes(evidence.sampling, evidence.calibration)))
    rows += [(f"paper {device}, total", "", minutes) for device, minutes in paper.TABLE_12.items()]
    return pd.DataFrame(rows, columns=["part", "behind the predictors", "minutes"])


def table_modes(evidence: Evidence) -> pd.DataFrame:
    """Whole-model accuracy of each measuring mode at equal measuring time."""
    frame = evidence.frame("modes", "mode", "seconds", "rows", "within_5pct", "within_10pct", "rmspe")
    return pd.DataFrame(
        {
            "mode": frame["mode"],
            "minutes": frame["seconds"] / _SECONDS_PER_MINUTE,
            "rows": frame["rows"],
            "RMSPE (%)": frame["rmspe"],
            "within 5 % (%)": 100 * frame["within_5pct"],
            "within 10 % (%)": 100 * frame["within_10pct"],
        }
    )


def _shape(config: str) -> str:
    """A configuration without what the paper's does not hold."""
    return json.dumps({k: v for k, v in json.loads(config).items() if k not in _BEYOND_SHAPE}, sort_keys=True)


def table_seen(evidence: Evidence) -> pd.DataFrame:
    """Share of the evaluated, distinct configurations that the predictors' training had seen, by kind and overall.

    `exact` compares all of a configuration; `shape` leaves out what is fused behind the anchor, as the paper does.
    """
    evaluated = evidence.frame("evaluated_kernels", "kind", "config")
    trained = training_rows(evidence)
    kinds = list(dict.fromkeys(evaluated["kind"]))
    rows = []
    total = np.zeros(4)
    for kind in kinds:
        wanted, known = (
            {without_context(c) for c in table.loc[table["kind"] == kind, "config"]} for table in (evaluated, trained)
        )
        shapes, known_shapes = {_shape(c) for c in wanted}, {_shape(c) for c in known}
        counts = np.array([len(wanted), len(wanted & known), len(shapes), len(shapes & known_shapes)], dtype=float)
        total += counts
        unpublished = [np.nan] * len(paper.DEVICES)
        rows.append((kind, int(counts[0]), 100 * counts[1] / counts[0], 100 * counts[3] / counts[2], *unpublished))
    if total[0]:
        overall = (int(total[0]), 100 * total[1] / total[0], 100 * total[3] / total[2])
        rows.append(("all", *overall, *(paper.SEEN_CONFIGURATIONS[device] for device in paper.DEVICES)))
    names = ["kernel", "configurations", "seen, exact (%)", "seen, shape (%)"]
    return pd.DataFrame(rows, columns=[*names, *(f"paper {device} (%)" for device in paper.DEVICES)])
