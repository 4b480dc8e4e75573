"""The tables of the chapter on partitions, each beside the paper's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
)
from edgeplan.chapters.partition.evaluation.metrics import gain_share, mean_share
from edgeplan.chapters.partition.names import ALL_CORES
from edgeplan.reporting import kit
from edgeplan.reporting.estimates import estimate, geomean
from edgeplan.reporting.kit import NotMeasuredError

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
PARTITION_TABLES: Mapping[str, kit.TableSpec[PartitionEvidence]] = kit.registry(
    kit.TableSpec("partition_beside", "Our plan over the best of all other ways", beside, ("ours",)),
    kit.TableSpec("partition_table_01", "Errors of the predictors (Table 1)", errors, ("tested",)),
    kit.TableSpec("partition_table_02", "Layers split, mean speedup (Table 2)", layers, ("speedups",), _layers_note),
    kit.TableSpec("partition_table_03", "Models end to end (Table 3)", models, ("planned",)),
    kit.TableSpec("partition_table_04", "Without dispatch features or polling (Table 4)", ablation, ("speedups",)),
    kit.TableSpec("partition_handshakes", "Handshakes", handshakes, ("handshakes",)),
)
