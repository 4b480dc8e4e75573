"""Tables of fusion: the paper's Tables 3 and 4, precision and recall of the rules, and what fusing behind Conv costs."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.fusion.verification import averages
from edgeplan.errors import FormatError
from edgeplan.graph.kernels import CONTEXT

#: Groups over which precision and recall are macro-averaged.
MACRO = "macro average"
WITH_RESHAPES = "macro average, with reshapes"
BN_FOLDING = "batch-norm folding"
RESHAPING = "reshapes"

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
    """The test cases, with the size of their tensors (`tensors`) apart from the context."""
    columns = ("t_op1_us", "t_op2_us", "t_pair_us", "margin", "noise", "decision", "repeats", "why_undecided")
    cases = evidence.frame("test_cases", "pair", "connection", "context", *columns)
    words = cases["context"].fillna("").astype(str).str.split()
    return cases.assign(
        tensors=["small" if "small" in w else "large" for w in words],
        context=[" ".join(part for part in w if part != "small") for w in words],
    )


def undecided_note(evidence: Evidence) -> str:
    """Tell how many test cases were given up undecided, after how many measurements, and why; "" where there are no cases."""
    if not evidence.has("test_cases"):
        return ""
    cases = _cases(evidence)
    undecided = cases[cases["decision"] == "undecided"]
    if not len(undecided):
        return f"All {len(cases)} test cases were decided."
    counts = undecided.groupby(["repeats", "why_undecided"]).size().reset_index(name="count")
    told = [
        f"{count} after {times} measurement{'s' * (times > 1)} ({why})"
        for times, why, count in counts.itertuples(index=False, name=None)
    ]
    case = ["pair", "connection", "context"]
    clear = set(cases.loc[cases["decision"] != "undecided", case].itertuples(index=False, name=None))
    settled = sum(key in clear for key in undecided[case].itertuples(index=False, name=None))
    text = f"Of {len(cases)} test cases {len(undecided)} were given up undecided: {'; '.join(told)}."
    return f"{text} Settled on tensors of the other size: {settled}." if settled else text


def table_04(evidence: Evidence) -> pd.DataFrame:
    """Table 4: kernels of ResNet18 and how many of each, by the detected rules and on the paper's backends.

    The paper's `avgpool` is the global pooling, `gap` here.
    """
    if evidence.resnet18_kernels is None:
        raise FormatError(
            "the kernels of ResNet18 are missing",
            where="Table 4",
            next_step="split ResNet18 by the rules and pass its kernel types",
        )
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


def table_fusion(evidence: Evidence) -> pd.DataFrame:
    """Edges that the rules fuse against those that the engine runs in one node: averages first, then each group."""
    counts = ["edges", "fused_by_engine", "fused_by_rules", "true_positive"]
    apart = ["bn_folding", "reshaping"]
    rows = evidence.frame("verification", "pair", "connection", *counts, "precision", "recall", *apart)
    folding, reshaping = (rows[name].astype(bool) for name in apart)
    judged = ~folding & ~reshaping
    # A group that neither side ever fuses says nothing; it stays in the file, not in the table.
    fused = (rows["fused_by_engine"] > 0) | (rows["fused_by_rules"] > 0)
    parts = []
    groups = {
        MACRO: rows[fused & judged],
        WITH_RESHAPES: rows[fused & ~folding],
        BN_FOLDING: rows[fused & folding],
        RESHAPING: rows[fused & reshaping],
    }
    for name, part in groups.items():
        if len(part):
            precision, recall = averages(part.assign(**dict.fromkeys(apart, False)))
            total = {c: int(part[c].sum()) for c in counts}
            parts.append(pd.DataFrame([{"pair": name, "connection": "", **total, "precision": precision, "recall": recall}]))
    parts += [
        rows[fused & group].sort_values(["pair", "connection"]).drop(columns=apart) for group in (judged, reshaping & ~folding)
    ]
    table = pd.concat(parts, ignore_index=True)[["pair", "connection", *counts, "precision", "recall"]]
    table["precision (%)"], table["recall (%)"] = 100 * table["precision"], 100 * table["recall"]
    table = table.drop(columns=["precision", "recall"])
    return table.rename(columns=lambda c: str(c).replace("_", " "))


def _core(config: str) -> str:
    """A Conv's configuration without what is fused behind it."""
    try:
        fields = json.loads(config)
    except ValueError:
        return config
    return (
        json.dumps({k: v for k, v in fields.items() if k not in _FUSED_FIELDS}, sort_keys=True)
        if isinstance(fields, dict)
        else config
    )


def table_conv_fusion(evidence: Evidence) -> pd.DataFrame:
    """Cost of each fused type over the plain Conv of the same configuration: median, and the range over configurations."""
    frame = evidence.frame("conv_fusion", "config", "type", "latency_us")
    wide = frame.assign(config=frame["config"].map(_core)).pivot_table(
        index="config", columns="type", values="latency_us", aggfunc="min"
    )
    if "conv" not in wide.columns:
        raise FormatError(
            f"no plain `conv` to compare with, only {', '.join(wide.columns)}",
            where=f"table `conv_fusion` of {evidence.device}",
            next_step="measure the plain Conv of each configuration",
        )
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
