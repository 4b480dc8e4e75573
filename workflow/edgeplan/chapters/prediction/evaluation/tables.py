"""The chapter's tables, named by nn-Meter's numbers, each with what the paper printed.

Baselines of FLOPs know a model by one number or two (sections 7.1 and 7.2.1): each family is predicted by a linear regression
over the models of all other families, as in the paper's k-fold experiment. The paper's third baseline, a graph network, stands
in docs/prediction.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.whole_models import ADAPTIVE, CONV_CHECK, HELD_OUT, OPERATORS, RANDOM, SWEEP
from edgeplan.predictors.nodes.features import SIZES
from edgeplan.reporting.chapter_report import NotMeasuredError, TableSpec, registry
from edgeplan.reporting.metrics import FloatArray, accuracy, by_group, relative_errors, within
from edgeplan.reporting.page import flat_environment
from edgeplan.support.frames import read_csv, read_document, read_parquet
from edgeplan.support.numerics import nine_digits_each

#: Table of `Evidence` -> its file below the results of a device.
_FILES = {
    "test_cases": "fusion/test_cases.csv",
    "verification": "fusion/verification.csv",
    "kernels": "measurements/kernels.parquet",
    "quality": "predictors/quality.parquet",
    "samplers": "predictors/samplers.csv",
    "models": "evaluation/models.parquet",
    "calibration": "calibration/models.parquet",
    "breakdown": "evaluation/breakdown.parquet",
    "sweeps": "evaluation/sweeps.parquet",
    "conv_fusion": "evaluation/conv_fusion.csv",
}
_ZOO_FILES = {"zoo": "models.parquet", "prior": "prior.parquet"}
_DOCUMENTS = {"sampling": "measurements/sampling.json", "environment": "evaluation/environment.json"}


@dataclass(frozen=True)
class Evidence:
    """Holds what tables, figures and figures of merit are made of; what is empty was not measured.

    Times carry their unit in the column's name.

    Attributes:
        zoo: one row a model of the zoo (models.parquet): model_id, family, index, macs, memory_bytes ...
        test_cases: fusion test cases: pair, connection, context, t_op1_us, t_op2_us, t_pair_us, margin, noise, decision,
            repeats, why_undecided.
        verification: fused edges by engine and by rules: pair, connection, edges, fused_by_engine, fused_by_rules,
            true_positive, bn_folding, reshaping.
        kernels: measured nodes: key, config, sampler, model, latency_us, seconds ...
        sampling: the sampler's document, with `seconds` by part.
        quality: held-out nodes: kernel, key, model, measured_us, predicted_us, forest_us, split.
        samplers: conv predictors by sampler on frozen labels: sampler, rows, seconds, labels, rmse_ms, rmspe (percent),
            within_10pct (share), rmspe_more_low and _high (95 % interval of the rmspe less that of the adaptive one).
        models: evaluated variants: model_id, family, macs, memory_bytes, measured_ms (as it ran), normalised_ms (at the usual
            speed of the machine), noise, measured_at_s (since the epoch), blocks_span_s, repeat_ms, repeat_gap_s, predicted_ms,
            plain_sum_ms (nodes and the call alone), left_out_ms (with overheads of other families alone), low_ms, high_ms,
            guessed_share, operator_sum_ms, forest_ms, {adaptive,random}_sampling_ms: with the Conv predictor of that sampler's
            samples alone.
        calibration: models that set overheads and intervals: model_id, family, measured_ms, slowness, noise, seconds,
            measured_at_s.
        transfer: models measured on one device, predicted by another's predictors and by its own: family, measured_ms,
            transferred_ms, rebuilt_ms.
    """

    device: str
    zoo: pd.DataFrame = field(default_factory=pd.DataFrame)
    prior: pd.DataFrame = field(default_factory=pd.DataFrame)
    test_cases: pd.DataFrame = field(default_factory=pd.DataFrame)
    verification: pd.DataFrame = field(default_factory=pd.DataFrame)
    resnet18_kernels: tuple[str, ...] = ()
    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    quality: pd.DataFrame = field(default_factory=pd.DataFrame)
    samplers: pd.DataFrame = field(default_factory=pd.DataFrame)
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    breakdown: pd.DataFrame = field(default_factory=pd.DataFrame)
    sweeps: pd.DataFrame = field(default_factory=pd.DataFrame)
    conv_fusion: pd.DataFrame = field(default_factory=pd.DataFrame)
    environment: Mapping[str, Any] = field(default_factory=dict)
    transfer: pd.DataFrame = field(default_factory=pd.DataFrame)
    speed: Mapping[str, float] = field(default_factory=dict)
    speed_told: str = ""

    def evaluated(self, *columns: str) -> pd.DataFrame:
        """Return the evaluated variants that have a value in some columns."""
        known = set(columns) <= set(self.models.columns)
        frame = self.models.dropna(subset=list(columns)) if known else self.models.iloc[:0]
        if frame.empty:
            raise NotMeasuredError(f"there are no models with {', '.join(columns)}")
        return frame.reset_index(drop=True)


def read_evidence(device: str, results: Path, zoo: Path, **extra: Any) -> Evidence:
    """Read the evidence of one device from its folder and that of the zoo's tables, with further parts, e.g. speed."""
    parts: dict[str, Any] = {name: _table(results / path) for name, path in _FILES.items()}
    parts |= {name: _table(zoo / path) for name, path in _ZOO_FILES.items()}
    parts |= {name: read_document(results / path) for name, path in _DOCUMENTS.items()}
    return Evidence(device, **parts, **extra)


def _table(path: Path) -> pd.DataFrame:
    return read_parquet(path) if path.suffix == ".parquet" else read_csv(path)


#: Parts of the measuring time that serve a comparison or a check, not the predictors.
NOT_BEHIND_PREDICTORS = frozenset({HELD_OUT, SWEEP, CONV_CHECK, RANDOM})
#: Names of columns.
WITHIN_5, WITHIN_10 = "within 5 % (%)", "within 10 % (%)"
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
#: What the paper's means of these are (Figures 9 and 11), % within 10 %.
PUBLISHED = {
    "ours": paper.FIGURE_9["ours"],
    "operator sum": paper.FIGURE_11_OPERATOR,
    "FLOPs": paper.FIGURE_9["flops"],
    "FLOPs+MAC": paper.FIGURE_9["flops_mac"],
}
#: Baseline name -> the columns of models.parquet it regresses on. Both counts are the paper's: multiply-adds, and the bytes
#: of all feature maps and weights.
LINEAR_BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType({"flops": ("macs",), "flops_mac": ("macs", "memory_bytes")})
_SECONDS_PER_MINUTE = 60.0


def label(family: str) -> str:
    """Return the paper's name of a family, or the name as it is."""
    return str(paper.printed("table_02", "family")["label"].get(paper.family_key(family), family))


def _above(rows: Iterable[tuple[Any, ...]], name: str) -> pd.DataFrame:
    """Return rows above those of a table that the paper printed."""
    printed = paper.printed(name)
    return pd.DataFrame([*rows, *printed.itertuples(index=False, name=None)], columns=printed.columns)


def _beside(table: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Return a table with what the paper printed of the same families in further columns."""
    return pd.concat([table, printed.reindex(table["family"].map(paper.family_key)).set_axis(table.index)], axis=1)


def _labelled(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return a table by family beside a printed one, under the paper's names of families."""
    table = _beside(table, paper.printed(name, "family"))
    return table.assign(family=table["family"].map(label))


def table_01(evidence: Evidence) -> pd.DataFrame:
    """Return Table 1: sums of operators and of kernels of MobileNetV2, here the mean over its evaluated variants."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "operator_sum_ms")
    frame = frame[frame["family"].map(paper.family_key) == "mobilenetv2"]
    rows = []
    if len(frame):
        sums = [frame[c].to_numpy(float) for c in ("measured_ms", "operator_sum_ms", "predicted_ms")]
        errors = [100 * float(np.mean(np.abs(relative_errors(sums[0], s)))) for s in sums[1:]]
        means = [float(s.mean()) for s in sums]
        rows.append((evidence.device, f"mean of {len(frame)} variants", means[0], means[1], errors[0], means[2], errors[1]))
    return _above(rows, "table_01")


def table_02(evidence: Evidence) -> pd.DataFrame:
    """Return Table 2: average FLOPs (multiply-adds) of the generated variants and the range of latencies, by family."""
    zoo, measured = evidence.zoo, evidence.models
    printed, rows = paper.printed("table_02", "family"), []
    for family, own in zoo.groupby("family", sort=False):
        macs, base = own.loc[own["index"] >= 0, "macs"], own.loc[own["index"] < 0, "macs"]
        times = measured.loc[measured["family"] == family, "measured_ms"]
        rows.append(
            {
                "family": label(str(family)),
                "variants": len(macs),
                "FLOPs (M)": macs.mean() / 1e6,
                "base FLOPs (M)": base.iloc[0] / 1e6 if len(base) else np.nan,
                "paper: FLOPs (M)": printed["paper: FLOPs (M)"].get(paper.family_key(str(family)), np.nan),
                "measured": len(times),
                "latency min (ms)": times.min(),
                "latency max (ms)": times.max(),
            }
        )
    return _beside(pd.DataFrame(rows), printed[[f"paper {device}: latency (ms)" for device in paper.DEVICES]])


def table_03(evidence: Evidence) -> pd.DataFrame:
    """Return Table 3: the fusion test of pool and relu, in us: on small tensors, and on a large one where that is unclear."""
    words = evidence.test_cases["context"].fillna("").astype(str).str.split()
    cases = evidence.test_cases.assign(device=evidence.device, tensors=["small" if "small" in w else "large" for w in words])
    cases = cases.assign(sum_us=cases["t_op1_us"] + cases["t_op2_us"])
    chosen = cases[(cases["pair"] == "maxpool_relu") & (cases["connection"] == "single")]
    columns = ["device", "tensors", "t_op1_us", "t_op2_us", "t_pair_us", "sum_us", "decision"]
    return _above(chosen[columns].itertuples(index=False, name=None), "table_03")


def table_04(evidence: Evidence) -> pd.DataFrame:
    """Return Table 4: kernels of ResNet18 and how many of each, by the detected rules and on the paper's backends."""
    ours, printed = Counter(evidence.resnet18_kernels), paper.printed("table_04", "kernel")
    kernels = list(dict.fromkeys([*ours, *printed.index]))
    table = pd.DataFrame({"kernel": kernels, evidence.device: [ours[k] for k in kernels]})
    return table.join(printed.reindex(kernels, fill_value=0), on="kernel")


def table_05(evidence: Evidence) -> pd.DataFrame:
    """Return Table 5: the sample space of Conv that the prior models span."""
    configs = [json.loads(text) for text in evidence.prior.loc[evidence.prior["kind"] == "conv", "config"]]
    names = ("in_height", "kernel_h", "stride_h", "in_channels", "out_channels")
    sizes, kernels, strides, inputs, outputs = (sorted({int(c.get(name, 1)) for c in configs}) for name in names)
    space = len(sizes) * len(kernels) * len(strides) * (inputs[-1] - inputs[0] + 1) * (outputs[-1] - outputs[0] + 1)
    ours = {
        "input HW": ", ".join(map(str, reversed(sizes))),
        "kernel size": ", ".join(map(str, kernels)),
        "stride": ", ".join(map(str, strides)),
        "Cin": f"{inputs[0]} - {inputs[-1]}",
        "Cout": f"{outputs[0]} - {outputs[-1]}",
        "configurations": f"{space / 1e9:.2g} billion ({len(configs)} distinct in the prior models)",
    }
    printed = paper.printed("table_05")
    return printed.assign(ours=printed["dimension"].map(ours))[["dimension", "ours", "paper"]]


def table_06(evidence: Evidence) -> pd.DataFrame:
    """Return Table 6: kernels of the paper, features, and the measured nodes that the predictors learn from."""
    rows = evidence.kernels[evidence.kernels["sampler"].isin([ADAPTIVE, OPERATORS])]
    trained = rows.assign(kernel=rows["key"].map(paper.paper_kernel)).groupby("kernel")["key"].agg(["size", "nunique"])
    printed = paper.printed("tables_06_09", "kernel").filter(regex="kernel|features|rows")
    order = [k for k in printed.index if k in trained.index or k == "se"]
    order += [k for k in trained.index if k not in order]
    counts = trained.reindex(order, fill_value=0)
    table = pd.DataFrame(
        {
            "kernel": order,
            "features": [", ".join(SIZES) if kernel in trained.index else "" for kernel in order],
            "rows": counts["size"].to_numpy(),
            "algorithms": counts["nunique"].to_numpy(),
        }
    )
    return table.join(printed, on="kernel").fillna({"paper kernel": "", "paper features": ""})


def table_07(evidence: Evidence) -> pd.DataFrame:
    """Return Table 7: the device, beside the paper's."""
    flat = flat_environment(evidence.environment)

    def first(*names: str) -> str:
        found = [flat[k] for name in names for k in flat if k == name or k.endswith(f".{name}")]
        return str(found[0]) if found else ""

    engine, version = first("engine", "engine_name"), first("engine_version")
    sizes, cpu = f"{first('cores')} cores, {first('memory_gib')} GiB", first("cpu", "cpu_model", "model_name", "processor")
    return _above([(evidence.device, sizes, cpu, f"{engine} {version}".strip(), first("threads"))], "table_07")


def _hits(frame: pd.DataFrame, predicted: str, prefix: str = "") -> pd.DataFrame:
    """Return family, number of models, and the four metrics of Table 8 in percent or ms."""
    table = by_group(frame, predicted=predicted)
    metrics = {
        "RMSE (ms)": table["rmse"],
        "RMSPE (%)": table["rmspe"],
        WITHIN_5: 100 * table["within_5pct"],
        WITHIN_10: 100 * table["within_10pct"],
    }
    return table[["family", "models"]].assign(**{f"{prefix}{name}": values for name, values in metrics.items()})


def table_08(evidence: Evidence) -> pd.DataFrame:
    """Return Table 8: end-to-end prediction by family and overall."""
    return _labelled(_hits(evidence.evaluated("measured_ms", "predicted_ms"), "predicted_ms"), "table_08")


def table_09(evidence: Evidence) -> pd.DataFrame:
    """Return Table 9: held-out kernels by kernel and split, ours and random forest."""
    frame, rows = evidence.quality, []
    for (split, kernel), part in frame.groupby(["split", "kernel"], sort=True):
        row: dict[str, Any] = {"split": split, "kernel": kernel, "rows": len(part)}
        for prefix, column in (("", "predicted_us"), ("forest: ", "forest_us")):
            known = part[part[column].notna()] if prefix else part
            if len(known):
                hit = accuracy(known["measured_us"], known[column])
                row |= {f"{prefix}RMSE (ms)": hit.rmse / 1e3, f"{prefix}RMSPE (%)": hit.rmspe}
                row[f"{prefix}{WITHIN_10}"] = 100 * hit.within_10pct
        rows.append(row)
    printed = paper.printed("tables_06_09", "kernel").filter(regex=r"RMSE|within")
    missing = [kernel for kernel in printed.index if kernel not in set(frame["kernel"])]
    rows += [{"split": "paper only", "kernel": kernel} for kernel in missing]
    return pd.DataFrame(rows).join(printed, on="kernel")


def table_10(evidence: Evidence) -> pd.DataFrame:
    """Return Table 10: the conv predictor by sampler on the frozen set, and whole models with that predictor among ours."""
    samplers, rows = evidence.samplers, []
    errors = samplers["rmspe"]
    for cell in samplers.to_dict("records"):
        name = str(cell["sampler"])
        models = evidence.models.dropna(subset=f"{name}_sampling_ms")
        alexnets = models[models["family"].map(paper.family_key) == "alexnet"]
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
        for which, found in (("models", models), ("AlexNets", alexnets)):
            hit = within(found["measured_ms"], found[f"{name}_sampling_ms"], 0.1) if len(found) else np.nan
            row[f"{which} within 10 % (%)"] = 100 * hit
        rows.append(row)
    return pd.DataFrame(rows).join(paper.printed("table_10", "sampler"), on="sampler")


def table_11(evidence: Evidence) -> pd.DataFrame:
    """Return Table 11: predictors of another device on this one, and the rebuilt ones."""
    table = _hits(evidence.transfer, "transferred_ms", "transferred: ")
    rebuilt = _hits(evidence.transfer, "rebuilt_ms", "rebuilt: ")
    return _labelled(table.join(rebuilt.drop(columns=["family", "models"])), "table_11")


def _measuring_seconds(sampling: Mapping[str, Any], calibration: pd.DataFrame) -> dict[str, float]:
    """Return wall-clock seconds of measuring by part: those of the sampler's document, and of the calibrating models."""
    found = {name: float(seconds) for name, seconds in sampling["seconds"].items()}
    return found | ({"calibration": float(calibration["seconds"].sum())} if len(calibration) else {})


def kernel_minutes(sampling: Mapping[str, Any], calibration: pd.DataFrame) -> float:
    """Return the minutes of measuring behind the predictors: all parts but the frozen test set and what only compares."""
    parts = _measuring_seconds(sampling, calibration)
    return sum(v for k, v in parts.items() if k not in NOT_BEHIND_PREDICTORS) / _SECONDS_PER_MINUTE


def table_12(evidence: Evidence) -> pd.DataFrame:
    """Return Table 12: measuring cost in minutes, by part."""
    parts = _measuring_seconds(evidence.sampling, evidence.calibration)
    rows = [(k, "no" if k in NOT_BEHIND_PREDICTORS else "yes", v / _SECONDS_PER_MINUTE) for k, v in parts.items()]
    rows.append(("total behind the predictors", "yes", kernel_minutes(evidence.sampling, evidence.calibration)))
    return _above(rows, "table_12")


def baselines(evidence: Evidence) -> pd.DataFrame:
    """Return every predictor's +-10 % accuracy and RMSPE by family and of all, in percent, where it was evaluated."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "macs", "memory_bytes")
    frame = with_baselines(frame) if len(frame["family"].unique()) > 1 else frame
    table = by_group(frame)[["family", "models"]]
    for name, column in PREDICTORS.items():
        if column in frame.columns and frame[column].notna().all():
            hits = by_group(frame, predicted=column)
            table[f"{name}: {WITHIN_10}"] = 100 * hits["within_10pct"]
            table[f"{name}: RMSPE (%)"] = hits["rmspe"]
    return table


def table_baselines(evidence: Evidence) -> pd.DataFrame:
    """Tabulate baselines by family, with the paper's means over five families and three devices (Fig. 9) as last row."""
    table = baselines(evidence)
    row = {"family": "paper (see caption)"} | {f"{name}: {WITHIN_10}": value for name, value in PUBLISHED.items()}
    last = pd.DataFrame([{c: row.get(c, np.nan) for c in table.columns}])
    return pd.concat([table.astype({"models": float}).assign(family=table["family"].map(label)), last], ignore_index=True)


def fit_linear(features: FloatArray, latency: FloatArray) -> FloatArray:
    """Fit ordinary least squares with an intercept: (n, d) and (n,) -> coefficients to nine digits, (d + 1,), that last."""
    # Counts reach 1e10 and the intercept is near 1: scaled columns keep the problem well conditioned.
    scale = np.maximum(np.abs(features).max(axis=0), 1e-300)
    design = np.column_stack([features / scale, np.ones(len(features))])
    solution, *_ = np.linalg.lstsq(design, latency, rcond=None)
    return nine_digits_each(np.append(solution[:-1] / scale, solution[-1]))


def leave_one_family_out(models: pd.DataFrame, columns: Sequence[str]) -> pd.Series[float]:
    """Predict every family (ms) by a linear regression over the others, of two at least; negative where the line is."""
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


def table_conv_fusion(evidence: Evidence) -> pd.DataFrame:
    """Tabulate the cost of each fused type over the plain Conv of the same configuration: median, and range over them."""
    wide = evidence.conv_fusion.pivot_table(index="config", columns="type", values="latency_us", aggfunc="min")
    if "conv" not in wide.columns:
        raise NotMeasuredError(f"there is no plain `conv` to compare with, only {', '.join(wide.columns)}")
    rows, plain = [], paper.CONV_FUSED_MS["conv"]
    for name in sorted(wide.columns, key=lambda c: (len(c), c)):
        ratio = (wide[name] / wide["conv"]).dropna()
        if len(ratio):
            over = [100 * (float(statistic(ratio)) - 1) for statistic in (np.median, np.min, np.max)]
            published = paper.CONV_FUSED_MS.get(name)
            printed = 100 * (published / plain - 1) if published else np.nan
            rows.append((name, len(ratio), float(wide.loc[ratio.index, name].median()), *over, printed))
    over_conv = [f"over Conv, {what} (%)" for what in ("median", "min", "max")]
    names = ["kernel", "configurations", "median latency (us)", *over_conv, "paper GPU, one configuration (%)"]
    return pd.DataFrame(rows, columns=names)


_PREDICTED = "models.predicted_ms"
#: Every table by id, in the order of the report.
TABLES: Mapping[str, TableSpec[Evidence]] = registry(
    TableSpec("table_01", "MobileNetV2: operators and kernels summed", table_01, (_PREDICTED, "models.operator_sum_ms")),
    TableSpec("table_02", "Families of the zoo", table_02, ("zoo",)),
    TableSpec("table_03", "A fusion test: pool, relu", table_03, ("test_cases",)),
    TableSpec("table_04", "Kernels of ResNet18", table_04, ("resnet18_kernels",)),
    TableSpec("table_05", "Sample space of Conv", table_05, ("prior",)),
    TableSpec("table_06", "Kernels, features and measured rows", table_06, ("kernels",)),
    TableSpec("table_07", "Devices", table_07, ("environment",)),
    TableSpec("table_08", "Whole-model prediction by family", table_08, (_PREDICTED,)),
    TableSpec("table_09", "Kernel predictors", table_09, ("quality",)),
    TableSpec("table_10", "Adaptive sampling against random sampling", table_10, ("samplers",)),
    TableSpec("table_11", "Predictors of another device", table_11, ("transfer",)),
    TableSpec("table_12", "Measuring cost", table_12, ("sampling", "calibration")),
    TableSpec(
        "table_baselines", "Baselines on unseen families", table_baselines, (_PREDICTED, "models.macs", "models.memory_bytes")
    ),
    TableSpec("table_conv_fusion", "Does Conv cost what Conv++bn++relu does?", table_conv_fusion, ("conv_fusion",)),
)
