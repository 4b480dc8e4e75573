"""Tabulates sampling and the predictors: the paper's Tables 5, 6, 7, 9, 10 and 12."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.executed import ADAPTIVE, CONV_CHECK, HELD_OUT, OPERATORS, RANDOM, SWEEP
from edgeplan.predictors.nodes.features import SIZES
from edgeplan.reporting.environment import flat_environment
from edgeplan.reporting.metrics import accuracy, within

#: Parts of the measuring time that serve a comparison or a check, not the predictors.
NOT_BEHIND_PREDICTORS = frozenset({HELD_OUT, SWEEP, CONV_CHECK, RANDOM})

_SECONDS_PER_MINUTE = 60.0


def _listed(values: set[int]) -> str:
    return ", ".join(str(v) for v in sorted(values, reverse=True))


def table_05(evidence: Evidence) -> pd.DataFrame:
    """Return Table 5: the sample space of Conv that the prior models span."""
    configs = [json.loads(text) for text in evidence.prior.loc[evidence.prior["kind"] == "conv", "config"]]

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
    printed = paper.printed("table_05")
    return printed.assign(ours=printed["dimension"].map(ours))[["dimension", "ours", "paper"]]


def training_rows(evidence: Evidence) -> pd.DataFrame:
    """Return the measured nodes that the predictors learn from, with the paper's kernel that each is."""
    rows = evidence.kernels[evidence.kernels["sampler"].isin([ADAPTIVE, OPERATORS])]
    return rows.assign(kernel=rows["key"].map(paper.kernel_of))


def table_06(evidence: Evidence) -> pd.DataFrame:
    """Return Table 6: kernels, features and the rows that the predictors learn from."""
    trained = training_rows(evidence)
    counts, keys = trained["kernel"].value_counts(), trained.groupby("kernel")["key"].nunique()
    printed = paper.printed("tables_06_09", "kernel").filter(regex="kernel|features|rows")
    order = [k for k in printed.index if k in counts or k == "se"]
    order += [k for k in sorted(counts.index) if k not in order]
    rows = [
        {
            "kernel": kernel,
            "features": ", ".join(SIZES) if kernel in counts else "",
            "rows": int(counts.get(kernel, 0)),
            "algorithms": int(keys.get(kernel, 0)),
        }
        for kernel in order
    ]
    table = pd.DataFrame(rows).join(printed, on="kernel")
    return table.fillna({"paper kernel": "", "paper features": ""})


def table_07(evidence: Evidence) -> pd.DataFrame:
    """Return Table 7: the device, beside the paper's."""
    flat = flat_environment(evidence.environment)

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
    printed = paper.printed("table_07")
    return pd.DataFrame([ours, *printed.itertuples(index=False, name=None)], columns=printed.columns)


def table_09(evidence: Evidence) -> pd.DataFrame:
    """Return Table 9: held-out kernels by kernel and split, ours and random forest."""
    frame = evidence.quality
    rows = []
    for (split, kernel), part in frame.groupby(["split", "kernel"], sort=True):
        hit = accuracy(part["measured_us"], part["predicted_us"])
        row: dict[str, Any] = {"split": split, "kernel": kernel, "rows": len(part)}
        row |= {"RMSE (ms)": hit.rmse / 1e3, "RMSPE (%)": hit.rmspe, "within 10 % (%)": 100 * hit.within_10pct}
        known = part[part["forest_us"].notna()]
        if len(known):
            other = accuracy(known["measured_us"], known["forest_us"])
            row |= {"forest: RMSE (ms)": other.rmse / 1e3, "forest: RMSPE (%)": other.rmspe}
            row["forest: within 10 % (%)"] = 100 * other.within_10pct
        rows.append(row)
    printed = paper.printed("tables_06_09", "kernel").filter(regex=r"RMSE|within")
    missing = [kernel for kernel in printed.index if kernel not in set(frame["kernel"])]
    rows += [{"split": "paper only", "kernel": kernel} for kernel in missing]
    return pd.DataFrame(rows).join(printed, on="kernel")


def table_10(evidence: Evidence) -> pd.DataFrame:
    """Return Table 10: the conv predictor by sampler on the frozen set, and whole models with that predictor among ours."""
    samplers = evidence.samplers
    rows = []
    for cell in samplers.to_dict("records"):
        name = str(cell["sampler"])
        models = evidence.models.dropna(subset=f"{name}_sampling_ms")
        alexnets = models[models["family"].map(paper.family_key) == "alexnet"]
        errors = samplers["rmspe"]
        row: dict[str, Any] = {
            "sampler": name,
            "rows": cell["rows"],
            "minutes": cell["seconds"] / _SECONDS_PER_MINUTE,
            "conv RMSE (ms)": cell["rmse_ms"],
            "conv RMSPE (%)": cell["rmspe"],
            "lowest": "" if errors.notna().sum() <= 1 else "yes" if cell["rmspe"] == errors.min() else "no",
            "over adaptive, from (points)": cell.get("rmspe_more_low", np.nan),
            "to (points)": cell.get("rmspe_more_high", np.nan),
            "conv within 10 % (%)": 100 * cell["within_10pct"],
        }
        row |= {
            f"{which} within 10 % (%)": 100 * within(found["measured_ms"], found[f"{name}_sampling_ms"], 0.1)
            if len(found)
            else np.nan
            for which, found in (("models", models), ("AlexNets", alexnets))
        }
        rows.append(row)
    return pd.DataFrame(rows).join(paper.printed("table_10", "sampler"), on="sampler")


def measuring_seconds(sampling: Mapping[str, Any], calibration: pd.DataFrame) -> dict[str, float]:
    """Return wall-clock seconds of measuring by part: those of the sampler's document, and of the calibrating models."""
    found = {name: float(seconds) for name, seconds in sampling["seconds"].items()}
    return found | ({"calibration": float(calibration["seconds"].sum())} if len(calibration) else {})


def kernel_minutes(sampling: Mapping[str, Any], calibration: pd.DataFrame) -> float:
    """Return the minutes of measuring behind the predictors: all parts but the frozen test set and what only compares.

    Args:
        sampling: the sampler's document.
        calibration: the whole models that set the factors of kinds and the intervals: seconds.
    """
    parts = measuring_seconds(sampling, calibration)
    return sum(v for k, v in parts.items() if k not in NOT_BEHIND_PREDICTORS) / _SECONDS_PER_MINUTE


def table_12(evidence: Evidence) -> pd.DataFrame:
    """Return Table 12: measuring cost in minutes, by part."""
    parts = measuring_seconds(evidence.sampling, evidence.calibration)
    rows: list[tuple[str, str, float]] = [
        (k, "no" if k in NOT_BEHIND_PREDICTORS else "yes", v / _SECONDS_PER_MINUTE) for k, v in parts.items()
    ]
    rows.append(("total behind the predictors", "yes", kernel_minutes(evidence.sampling, evidence.calibration)))
    printed = paper.printed("table_12")
    return pd.DataFrame([*rows, *printed.itertuples(index=False, name=None)], columns=printed.columns)
