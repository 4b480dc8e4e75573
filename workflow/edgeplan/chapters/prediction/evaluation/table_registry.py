"""This registry lists tables; a new one is one function and one line of `TABLES`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation import tables_baselines as baselines
from edgeplan.chapters.prediction.evaluation import tables_prediction as prediction
from edgeplan.chapters.prediction.evaluation import tables_sampling as sampling
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.kit import NotMeasuredError, TableSpec, registry


def table_03(evidence: Evidence) -> pd.DataFrame:
    """Return Table 3: the fusion test of pool and relu, in us: on small tensors, and on a large one where that is unclear."""
    cases = _cases(evidence)
    chosen = cases[(cases["pair"] == "maxpool_relu") & (cases["connection"] == "single")]
    rows = [
        (
            evidence.device,
            case["tensors"],
            case["t_op1_us"],
            case["t_op2_us"],
            case["t_pair_us"],
            case["t_op1_us"] + case["t_op2_us"],
            case["decision"],
        )
        for case in chosen.to_dict("records")
    ]
    printed = paper.printed("table_03")
    return pd.DataFrame([*rows, *printed.itertuples(index=False, name=None)], columns=printed.columns)


def _cases(evidence: Evidence) -> pd.DataFrame:
    """Return the test cases with the size of their tensors in a column (`tensors`)."""
    words = evidence.test_cases["context"].fillna("").astype(str).str.split()
    return evidence.test_cases.assign(tensors=["small" if "small" in w else "large" for w in words])


def table_04(evidence: Evidence) -> pd.DataFrame:
    """Return Table 4: kernels of ResNet18 and how many of each, by the detected rules and on the paper's backends.

    The paper's `avgpool` is the global pooling, `gap` here.
    """
    ours, printed = Counter(evidence.resnet18_kernels), paper.printed("table_04", "kernel")
    kernels = list(dict.fromkeys([*ours, *printed.index]))
    table = pd.DataFrame({"kernel": kernels, evidence.device: [ours[k] for k in kernels]})
    return table.join(printed.reindex(kernels, fill_value=0), on="kernel")


def table_conv_fusion(evidence: Evidence) -> pd.DataFrame:
    """Tabulate the cost of each fused type over the plain Conv of the same configuration: median, and range over them."""
    frame = evidence.conv_fusion
    wide = frame.pivot_table(index="config", columns="type", values="latency_us", aggfunc="min")
    if "conv" not in wide.columns:
        raise NotMeasuredError(f"there is no plain `conv` to compare with, only {', '.join(wide.columns)}")
    rows = []
    plain = paper.CONV_FUSED_MS["conv"]
    for name in sorted(wide.columns, key=lambda c: (len(c), c)):
        ratio = (wide[name] / wide["conv"]).dropna().to_numpy(float)
        if not ratio.size:
            continue
        published = paper.CONV_FUSED_MS.get(name)
        rows.append(
            (
                name,
                len(ratio),
                float(wide.loc[wide[name].notna() & wide["conv"].notna(), name].median()),
                100 * (float(np.median(ratio)) - 1),
                100 * (float(ratio.min()) - 1),
                100 * (float(ratio.max()) - 1),
                100 * (published / plain - 1) if published else np.nan,
            )
        )
    names = [
        "kernel",
        "configurations",
        "median latency (us)",
        "over Conv, median (%)",
        "over Conv, min (%)",
        "over Conv, max (%)",
    ]
    return pd.DataFrame(rows, columns=[*names, "paper GPU, one configuration (%)"])


#: Every table by id, in the order of the report.
TABLES: Mapping[str, TableSpec[Evidence]] = registry(
    TableSpec(
        "table_01",
        "MobileNetV2: operators and kernels summed",
        prediction.table_01,
        ("models.predicted_ms", "models.operator_sum_ms"),
    ),
    TableSpec(
        "table_02",
        "Families of the zoo",
        prediction.table_02,
        ("zoo",),
    ),
    TableSpec(
        "table_03",
        "A fusion test: pool, relu",
        table_03,
        ("test_cases",),
    ),
    TableSpec(
        "table_04",
        "Kernels of ResNet18",
        table_04,
        ("resnet18_kernels",),
    ),
    TableSpec(
        "table_05",
        "Sample space of Conv",
        sampling.table_05,
        ("prior",),
    ),
    TableSpec(
        "table_06",
        "Kernels, features and measured rows",
        sampling.table_06,
        ("kernels",),
    ),
    TableSpec("table_07", "Devices", sampling.table_07, ("environment",)),
    TableSpec(
        "table_08",
        "Whole-model prediction by family",
        prediction.table_08,
        ("models.predicted_ms",),
    ),
    TableSpec(
        "table_09",
        "Kernel predictors",
        sampling.table_09,
        ("quality",),
    ),
    TableSpec(
        "table_10",
        "Adaptive sampling against random sampling",
        sampling.table_10,
        ("samplers",),
    ),
    TableSpec(
        "table_11",
        "Predictors of another device",
        prediction.table_11,
        ("transfer",),
    ),
    TableSpec(
        "table_12",
        "Measuring cost",
        sampling.table_12,
        ("sampling", "calibration"),
    ),
    TableSpec(
        "table_baselines",
        "Baselines on unseen families",
        baselines.table_baselines,
        ("models.predicted_ms", "models.macs", "models.memory_bytes"),
    ),
    TableSpec(
        "table_conv_fusion",
        "Does Conv cost what Conv++bn++relu does?",
        table_conv_fusion,
        ("conv_fusion",),
    ),
)
