"""The tables of the chapter on partitions, each beside the paper's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.evaluation.evidence import (
    CPU,
    EVENTS,
    GPU,
    LAYER_WAYS,
    OURS,
    PAIR_WAYS,
    PLAIN,
    PartitionEvidence,
    gain_share,
    mean_share,
)
from edgeplan.chapters.partition.names import ALL_CORES
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.metrics import estimate, geomean

_KINDS = ("linear", "conv")
_THREADS = ("1 thread", "2 threads", "3 threads")


def errors(e: PartitionEvidence) -> pd.DataFrame:
    """Table 1: MAPE of the predictors, in percent."""
    means = e.tested.groupby(["side", "kind", "predictor"])["error"].mean() * 100
    rows = []
    for kind in _KINDS:
        own: dict[str, object] = {"device": e.pair, "operations": kind}
        own |= {f"{label}_pct": means.get((side, kind, "ours"), np.nan) for label, side in (("gpu", GPU), ("cpu_1", CPU))}
        for label in ("plain", "linear regression", "network"):
            own[f"gpu_{label.replace(' ', '_')}_pct"] = means.get((GPU, kind, label), np.nan)
        rows.append(own)
    for (device, kind), (gpu, *threads) in paper.MAPE.items():
        printed: dict[str, object] = {f"cpu_{n}_pct": value for n, value in enumerate(threads, start=1)}
        rows.append({"device": f"paper: {device}", "operations": kind, "gpu_pct": gpu, **printed})
    return pd.DataFrame(rows).round(2)


def _by_kind(e: PartitionEvidence, ways: Sequence[str]) -> dict[str, dict[str, object]]:
    """Return the mean speedup on layers of each kind, by those of the ways that were measured."""
    means = e.speedups.groupby(level="kind").mean().reindex(_KINDS)
    return {
        way: {"device": e.pair, "method": way, **{f"{kind}_1_thread": means[way][kind] for kind in _KINDS}}
        for way in ways
        if way in means
    }


def layers(e: PartitionEvidence) -> pd.DataFrame:
    """Table 2: mean speedup over the faster single processor."""
    rows = []
    for way, row in _by_kind(e, LAYER_WAYS).items():
        row |= {"gain_share": gain_share(e.speedups, way), "mean_of_shares": mean_share(e.speedups, way)}
        row |= {"slower": (e.speedups[way].dropna() < 1 / 1.02).mean(), "layers": int(e.speedups[way].notna().sum())}
        rows.append(row)
    rows += [
        {"device": f"paper: {device}", "method": "ours" if method == "GBDT" else method, **_printed(values)}
        for (device, method), values in paper.SPEEDUP.items()
    ]
    return pd.DataFrame(rows).round(3)


def _printed(values: tuple[float, ...]) -> dict[str, float]:
    names = [f"{kind}_{threads.replace(' ', '_')}" for kind in _KINDS for threads in _THREADS]
    return dict(zip(names, values, strict=True))


def beside(e: PartitionEvidence) -> pd.DataFrame:
    """Our plan beside the best that one processor, all cores or a stock engine on all cores take; the mean first."""
    f = e.beside
    others = {"best": "the best", "single": "the better processor", "all_cores": ALL_CORES, "stock": "the best stock engine"}
    speedups = pd.DataFrame({f"speedup over {name}": f[key] / f["ours"] for key, name in others.items()})
    repeat = e.ours.set_index("model")["repeat"]
    found = pd.DataFrame(
        {"model": f.index, "ours_ms": f["ours"].to_numpy(), "best_ms": f["best"].to_numpy(), "best way": f["way"]}
    )
    found = found.reset_index(drop=True).join(speedups.reset_index(drop=True))
    found = found.assign(repeat=found["model"].map(repeat), reason=found["model"].map(e.ours.set_index("model")["reason"]))
    means = {name: estimate(geomean, column.dropna()) for name, column in speedups.items()}
    first = {"model": f"all {len(f)} models, mean", **{name: made.value for name, made in means.items()}, "reason": ""}
    ends = [{"model": f"95 %, {end}", **{name: getattr(made, end) for name, made in means.items()}} for end in ("low", "high")]
    faster = {name: (~(column >= 1)).sum() for name, column in speedups.items()}
    rows = [first, *ends, {"model": "models on which it is faster than ours", **faster}]
    return (
        pd.concat([pd.DataFrame(rows), found], ignore_index=True)[list(found)].fillna({"reason": "", "best way": ""}).round(4)
    )


def models(e: PartitionEvidence) -> pd.DataFrame:
    """Table 3: models end to end."""
    times, planned = e.end_to_end, e.planned.set_index("model")
    rows = []
    for model in times.index:
        if model not in planned.index:
            continue
        own, row = planned.loc[model], times.loc[model]
        stock = row.drop([way for way in (*PAIR_WAYS, ALL_CORES) if way in row]).dropna()
        best = row[[CPU, GPU]].min()
        found = {
            "model": model,
            **{f"{way}_ms": row.get(way, np.nan) for way in (CPU, GPU)},
            "ours_ms": row[OURS],
            "predicted_ms": own["predicted_ms"],
            "slowdown": own["slowdown"],
            "speedup": best / row[OURS],
            **{f"{way}_speedup": best / row.get(way, np.nan) for way in ("greedy", "fixed", "equal")},
            "all_cores_speedup": best / row.get(ALL_CORES, np.nan),
            "stock_speedup": best / stock.min() if len(stock) else np.nan,
            "stock": str(stock.idxmin()) if len(stock) else "",
            "splits": int(own["splits"]),
            "steps": int(own["steps"]),
            "plan_gap": own["plan_gap"],
            "plan_s": own["plan_seconds"],
            "repeat": own["repeat"],
            "error": f"{own['error']:.1e}",
        }
        printed = paper.END_TO_END.get(model)
        found["paper_speedups"] = " / ".join(f"{value:.2f}" for value in printed) if printed else ""
        rows.append(found)
    if not rows:
        raise NotMeasuredError("no plan of a model ran")
    return pd.DataFrame(rows).round(4)


def ablation(e: PartitionEvidence) -> pd.DataFrame:
    """Table 4: without dispatch features, and with event waits."""
    rows = [*_by_kind(e, (OURS, PLAIN, EVENTS)).values()]
    rows += [{"device": "paper: Moto 2022", "method": name, **_printed(values)} for name, values in paper.ABLATION.items()]
    return pd.DataFrame(rows).round(3)


def handshakes(e: PartitionEvidence) -> pd.DataFrame:
    """Return the cost of a step of nothing, by synchronisation; and by how much split layers take longer by events (5.5)."""
    f = e.handshakes
    longer = {kind: _longer_by_events(e, kind) for kind in _KINDS}
    printed = dict(zip(("events", "polling"), paper.HANDSHAKE_US, strict=True))
    return pd.DataFrame(
        {
            "synchronisation": f["synchronisation"],
            "least_us": f["least_us"].round(2),
            "median_us": f["median_us"].round(2),
            "paper_us": f["synchronisation"].map(printed),
            **{f"{kind} over polling_us": f["synchronisation"].map({"events": longer[kind]}).round(2) for kind in _KINDS},
            "note": f["note"],
        }
    ).reset_index(drop=True)


def _longer_by_events(e: PartitionEvidence, kind: str) -> float:
    """Return the median over split layers of a kind of their time by events less that by polling, in us."""
    rows = e.layers[(e.layers["kind"] == kind) & e.layers["way"].isin([OURS, EVENTS])]
    split = rows[(rows["channels"] > 0) & (rows["channels"] < rows["outputs"])]
    us = split.pivot_table(index="name", columns="way", values="us", aggfunc="first").reindex(columns=[OURS, EVENTS])
    return float((us[EVENTS] - us[OURS]).median())


def _layers_note(e: PartitionEvidence) -> str:
    counts = e.environment.get("layers_by_rule", {})
    told = ", ".join(f"{counts[kind]} {name} (the paper says {paper.LAYERS[kind]})" for kind, name in _NAMES if kind in counts)
    return f"The rules of section 5.3 give {told}; a seeded part of them is measured." if told else ""


_NAMES = (("linear", "linear layers"), ("conv", "convolutions"))

#: Every table by id.
PARTITION_TABLES: Mapping[str, TableSpec[PartitionEvidence]] = registry(
    TableSpec("partition_beside", "Our plan over the best of all other ways", beside, ("ours",)),
    TableSpec("partition_table_01", "Errors of the predictors (Table 1)", errors, ("tested",)),
    TableSpec("partition_table_02", "Layers split, mean speedup (Table 2)", layers, ("speedups",), _layers_note),
    TableSpec("partition_table_03", "Models end to end (Table 3)", models, ("planned",)),
    TableSpec("partition_table_04", "Without dispatch features or polling (Table 4)", ablation, ("speedups",)),
    TableSpec("partition_handshakes", "Handshakes", handshakes, ("handshakes",)),
)


_TOP = 8
_CHANNELS = "output channels"


def _curve(e: PartitionEvidence, figure: str) -> Any:
    found = e.curve(figure)
    if found.empty:
        raise NotMeasuredError(f"there is no curve of {figure}")
    return found


def both_processors(e: PartitionEvidence) -> Any:
    """Figure 2: both processors over the output channels of a linear layer, with what half of the runs lie within."""
    f = _curve(e, "figure_02")
    figure, (axis,) = canvas(7.0, 3.6)
    for place, side in enumerate((CPU, GPU)):
        axis.plot(f["outputs"], f[f"{side}_us"], color=PALETTE[place], label=side.upper())
        axis.fill_between(
            f["outputs"], f[f"{side}_low_us"], f[f"{side}_high_us"], color=PALETTE[place], alpha=0.25, linewidth=0
        )
    name_axes(axis, _CHANNELS, "us")
    legend(axis)
    return figure


def _predictions(e: PartitionEvidence, curve: str, shown: tuple[str, ...]) -> Any:
    f = _curve(e, curve)
    figure, (axis,) = canvas(8.0, 3.8)
    axis.plot(f["outputs"], f["gpu_us"], color=INK, linewidth=1.5, label="measured")
    for place, name in enumerate(shown):
        axis.plot(f["outputs"], f[f"{name}_us"], color=PALETTE[place], linewidth=1.2, label=name)
    name_axes(axis, _CHANNELS, "us on the GPU")
    legend(axis, 2)
    return figure


def shapes_alone(e: PartitionEvidence) -> Any:
    """Figure 3: predictors on shapes alone."""
    return _predictions(e, "figure_03", ("plain", "linear regression", "network"))


def dispatch_features(e: PartitionEvidence) -> Any:
    """Figure 5: with dispatch features and without."""
    return _predictions(e, "figure_05", ("ours", "plain"))


def discontinuities(e: PartitionEvidence) -> Any:
    """Figure 6: work groups of a linear layer, and the change of kernel of a convolution."""
    figure, axes = canvas(10.0, 3.8, 2)
    linear = _curve(e, "figure_03")
    axes[0].plot(linear["outputs"], linear["gpu_us"], color=PALETTE[0], label="us")
    axes[0].plot([], [], color=PALETTE[1], linestyle="--", label="work groups")
    other = axes[0].twinx()
    other.plot(linear["outputs"], linear["work_groups"], color=PALETTE[1], linestyle="--")
    other.tick_params(labelsize=8)
    name_axes(axes[0], _CHANNELS, "us on the GPU", "linear, 50 x 768")
    legend(axes[0])
    conv = _curve(e, "figure_06")
    for place, (name, part) in enumerate(conv.groupby("implementation", sort=True)):
        axes[1].plot(part["outputs"], part["gpu_us"], color=PALETTE[place], marker="o", markersize=3, linestyle="", label=name)
    name_axes(axes[1], _CHANNELS, "us on the GPU", "convolution 3 x 3, 64 x 64 x 128")
    legend(axes[1])
    return figure


def importance(e: PartitionEvidence) -> Any:
    """Figure 7: gain of the most important features of convolutions, over all implementations."""
    conv = e.importance[(e.importance["kind"] == "conv") & (e.importance["implementation"] != "")]
    conv = conv if len(conv) else e.importance[e.importance["kind"] == "conv"]
    gain = conv.groupby("feature")["gain"].sum().sort_values(ascending=False)
    share = (gain / gain.sum()).head(_TOP)[::-1]
    figure, (axis,) = canvas(7.0, 3.6)
    colours = [PALETTE[0] if name.startswith("dispatch.") else PALETTE[1] for name in share.index]
    axis.barh(range(len(share)), 100 * share, color=colours)
    axis.set_yticks(range(len(share)), [name.removeprefix("dispatch.").replace("_", " ") for name in share.index])
    for place, label in enumerate(("of the dispatch", "of the shape")):
        axis.plot([], [], "s", color=PALETTE[place], label=label)
    name_axes(axis, "% of the gain", "")
    legend(axis)
    return figure


#: Every figure by id.
PARTITION_FIGURES: Mapping[str, FigureSpec[PartitionEvidence]] = registry(
    FigureSpec("partition_figure_02", "CPU and GPU (Figure 2)", both_processors, ("curves",)),
    FigureSpec("partition_figure_03", "Predictors on shapes alone (Figure 3)", shapes_alone, ("curves",)),
    FigureSpec("partition_figure_05", "With dispatch features (Figure 5)", dispatch_features, ("curves",)),
    FigureSpec("partition_figure_06", "Where latency jumps (Figure 6)", discontinuities, ("curves",)),
    FigureSpec("partition_figure_07", "What predictors rely on (Figure 7)", importance, ("importance",)),
)
