"""Tables of fusion are the paper's Tables 3 and 4, and what fusing behind Conv costs."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.graph.kernels import CONTEXT
from edgeplan.reporting.kit import NotMeasuredError

# What fusing behind a Conv changes in its configuration; all else decides what the Conv itself costs.
_FUSED_FIELDS = ("type", "activation", "bias", "residual", *CONTEXT)


def table_03(evidence: Evidence) -> pd.DataFrame:
    """Table 3: the fusion test of pool and relu, in us: on small tensors, and on a large one where that is unclear."""
    cases = _cases(evidence)
    chosen = cases[(cases["pair"] == "maxpool_relu") & (cases["connection"] == "single")]
    names = ["backend", "tensors", "T_pool (us)", "T_relu (us)", "T_pair (us)", "T_pool + T_relu (us)", "pool_relu"]
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
    for device, cell in paper.TABLE_3.items():
        decision = "fused" if cell.fused else "separate"
        rows.append((f"paper {device}", "", cell.pool_us, cell.relu_us, cell.pair_us, cell.sum_us, decision))
    return pd.DataFrame(rows, columns=names)


def _cases(evidence: Evidence) -> pd.DataFrame:
    """The test cases have the size of their tensors in a column (`tensors`)."""
    words = evidence.test_cases["context"].fillna("").astype(str).str.split()
    return evidence.test_cases.assign(tensors=["small" if "small" in w else "large" for w in words])


def table_04(evidence: Evidence) -> pd.DataFrame:
    """Table 4: kernels of ResNet18 and how many of each, by the detected rules and on the paper's backends.

    The paper's `avgpool` is the global pooling, `gap` here.
    """
    ours = Counter(evidence.resnet18_kernels)
    published = {
        device: Counter({("gap" if kernel == "avgpool" else kernel): n for kernel, n in kernels.items()})
        for device, kernels in paper.TABLE_4.items()
    }
    kernels = list(dict.fromkeys([*ours, *(k for counts in published.values() for k in counts)]))
    table = pd.DataFrame({"kernel": kernels, evidence.device: [ours[k] for k in kernels]})
    for device, counts in published.items():
        table[f"paper {device}"] = [counts[k] for k in kernels]
    return table


def _core(config: str) -> str:
    """A Conv's configuration without what is fused behind it."""
    return json.dumps({k: v for k, v in json.loads(config).items() if k not in _FUSED_FIELDS}, sort_keys=True)


def table_conv_fusion(evidence: Evidence) -> pd.DataFrame:
    """Cost of each fused type over the plain Conv of the same configuration: median, and the range over configurations."""
    frame = evidence.conv_fusion
    wide = frame.assign(config=frame["config"].map(_core)).pivot_table(
        index="config", columns="type", values="latency_us", aggfunc="min"
    )
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
