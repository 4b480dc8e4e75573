"""What the stage `partition` measured; tables of it beside the paper's values, and its figures 2, 3, 5, 6 and 7."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.settings import ALL_CORES, SAME_PLAN, SLOWER
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.metrics import FloatArray, estimate, geomean

#: Ways to run a layer: whole on one processor, and split by different choices.
CPU, GPU, SEARCH, OURS, PLAIN, EQUAL, FIXED, EVENTS = (
    *("cpu", "gpu", "search", "ours", "without dispatch features", "equal", "fixed", "waiting for events"),
)
GREEDY = "greedy"
#: Those of a layer, in the order of tables.
LAYER_WAYS = (SEARCH, OURS, PLAIN, FIXED, EQUAL, EVENTS, ALL_CORES)
#: Ways to run a model on the pair.
PAIR_WAYS = (OURS, GREEDY, FIXED, EQUAL, CPU, GPU)
FlagArray = npt.NDArray[np.bool_]
#: Oracles below it gain too little to be a divisor.
WORTH = 1.05
_KINDS = ("linear", "conv")
_THREADS = ("1 thread", "2 threads", "3 threads")
_TOP = 8
_CHANNELS = "output channels"


@dataclass(frozen=True)
class PartitionEvidence:
    """Rows of the stage `partition`.

    Attributes:
        errors, importance: of the predictors, as `learning.training.Trained` has them.
        layers: one row a layer and way: kind, name, way, channels (of the CPU, as measured), now (as the present predictors
            choose), outputs, us.
        models: one row a model and way, with the columns of `measuring.rows`; repeat is one half of the runs over the other; of
            our plan now_ms and now_splits, what the present predictors lead to.
        handshakes: synchronisation, least_us, median_us, note.
        curves: figure, outputs, cpu_us, gpu_us with low and high, implementation, work_groups, and what predictors say.
        environment: of the machine, with the rules' counts of layers.
    """

    pair: str
    errors: pd.DataFrame
    importance: pd.DataFrame
    layers: pd.DataFrame
    models: pd.DataFrame
    handshakes: pd.DataFrame
    curves: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def speedups(self) -> pd.DataFrame:
        """By kind and layer (index), a column for each way: speedup over the faster single processor, both on fresh runs."""
        us = self.layers.pivot_table(index=["kind", "name"], columns="way", values="us", aggfunc="first")
        if not {CPU, GPU} <= set(us.columns):
            return us.iloc[:0]
        best = us[[CPU, GPU]].min(axis=1)
        return us.rdiv(best, axis=0)

    @cached_property
    def planned_before(self) -> tuple[FlagArray, FlagArray]:
        """For each layer and each model whether our measured plan is none that the present predictors lead to.

        Tables of before they said so have none of either.
        """
        none = np.zeros(0, np.bool_)
        layers = self.layers[self.layers["way"] == OURS]
        split = (layers["channels"] != layers["now"]).to_numpy(np.bool_) if "now" in layers else none
        if "now_ms" not in self.planned:
            return split, none
        planned = self.planned[["predicted_ms", "now_ms", "splits", "now_splits"]].to_numpy(float).T
        return split, ~np.isclose(planned[0], planned[1], rtol=SAME_PLAN) | (planned[2] != planned[3])

    @cached_property
    def tested(self) -> pd.DataFrame:
        """Held-out samples with their relative errors."""
        rows = self.errors[self.errors["split"] == "test"]
        return rows.assign(error=(rows["predicted_us"] / rows["measured_us"] - 1).abs())

    @cached_property
    def end_to_end(self) -> pd.DataFrame:
        """Models by way: median time in ms."""
        ran = self.models[self.models["median_ms"].notna()]
        return ran.pivot_table(index="model", columns="way", values="median_ms", aggfunc="first", sort=False)

    @cached_property
    def ours(self) -> pd.DataFrame:
        """Our plan of every model, with a reason and without times where it did not run."""
        return self.models[self.models["way"] == OURS].drop_duplicates("model", keep="last")

    @cached_property
    def planned(self) -> pd.DataFrame:
        """Our plans of models that ran."""
        return self.ours[self.ours["median_ms"].notna()]

    @cached_property
    def stock(self) -> pd.DataFrame:
        """Models by stock engine: median time in ms."""
        return self.end_to_end.drop(columns=[way for way in (*PAIR_WAYS, ALL_CORES) if way in self.end_to_end])

    @cached_property
    def beside(self) -> pd.DataFrame:
        """Our plan of each model beside other ways; see `beside`."""
        return beside(self.end_to_end.reindex(self.ours["model"].drop_duplicates()), list(self.stock.columns))


def beside(times: pd.DataFrame, stock: Sequence[str] = ()) -> pd.DataFrame:
    """Our plan, not a number where it did not run, and the best that other ways take, ms, for each row of times by way.

    These are single, all_cores and stock; best is the least of them, way its name.
    """
    times = times.reindex(columns=[OURS, CPU, GPU, ALL_CORES, *stock])
    others = times.drop(columns=OURS)
    return pd.DataFrame(
        {
            "ours": times[OURS],
            "single": others[[CPU, GPU]].min(axis=1),
            "all_cores": others[ALL_CORES],
            "stock": others[[*stock]].min(axis=1),
            "best": others.min(axis=1),
            "way": others.dropna(how="all").idxmin(axis=1).reindex(times.index),
        }
    )


def slower(rows: pd.DataFrame, other: str) -> pd.Series[bool]:
    """Where our plan takes longer than another way (a column of `beside`), by over 2 % of one processor, or did not run."""
    known = rows[rows[other].notna()]
    return ~(known["ours"] <= (SLOWER if other == "single" else 1.0) * known[other])


def gain_share(speedups: pd.DataFrame, way: str) -> float:
    """Sum over layers of (speedup - 1) / sum of (the search's - 1), both over the faster single processor."""
    return share_of_search(*speedups_of(speedups, way))


def share_of_search(own: FloatArray, searched: FloatArray) -> float:
    """Return the gain over the faster single processor as a share of the search's."""
    with np.errstate(divide="ignore", invalid="ignore"):  # no number where the search gains nothing
        return float((own - 1).sum() / (searched - 1).sum())


def mean_share(speedups: pd.DataFrame, way: str) -> float:
    """Mean over layers whose search gains at least 5 % of (speedup - 1) / (the search's - 1)."""
    own, searched = speedups_of(speedups, way)
    worth = searched >= WORTH
    return float(((own[worth] - 1) / (searched[worth] - 1)).mean())


def speedups_of(speedups: pd.DataFrame, *ways: str) -> tuple[FloatArray, ...]:
    """Return the speedups of ways, the search's last, of layers that have all."""
    found = speedups[[*ways, SEARCH]].dropna()
    return tuple(found[way].to_numpy(float) for way in (*ways, SEARCH))


def _errors(e: PartitionEvidence) -> pd.DataFrame:
    """Table 1: MAPE of the predictors, in percent."""
    means = e.tested.groupby(["side", "kind", "predictor"])["error"].mean() * 100
    others = {f"gpu_{name.replace(' ', '_')}_pct": (GPU, name) for name in ("plain", "linear regression", "network")}
    of = {"gpu_pct": (GPU, "ours"), "cpu_1_pct": (CPU, "ours"), **others}
    rows: list[dict[str, object]] = [
        {"device": e.pair, "operations": kind, **{c: means.get((side, kind, name), np.nan) for c, (side, name) in of.items()}}
        for kind in _KINDS
    ]
    for (device, kind), (gpu, *threads) in paper.MAPE.items():
        printed = {f"cpu_{n}_pct": value for n, value in enumerate(threads, start=1)}
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


def _layers(e: PartitionEvidence) -> pd.DataFrame:
    """Table 2: mean speedup over the faster single processor."""
    rows = []
    for way, row in _by_kind(e, LAYER_WAYS).items():
        row |= {"gain_share": gain_share(e.speedups, way), "mean_of_shares": mean_share(e.speedups, way)}
        rows.append(row | {"slower": (e.speedups[way].dropna() < 1 / 1.02).mean(), "layers": int(e.speedups[way].count())})
    rows += [
        {"device": f"paper: {device}", "method": "ours" if method == "GBDT" else method, **_printed(values)}
        for (device, method), values in paper.SPEEDUP.items()
    ]
    return pd.DataFrame(rows).round(3)


def _printed(values: tuple[float, ...]) -> dict[str, float]:
    names = [f"{kind}_{threads.replace(' ', '_')}" for kind in _KINDS for threads in _THREADS]
    return dict(zip(names, values, strict=True))


def _layers_note(e: PartitionEvidence) -> str:
    names, counts = {"linear": "linear layers", "conv": "convolutions"}, e.environment.get("layers_by_rule", {})
    told = [f"{counts[kind]} {name} (the paper says {paper.LAYERS[kind]})" for kind, name in names.items() if kind in counts]
    return f"The rules of section 5.3 give {', '.join(told)}; a seeded part of them is measured." if told else ""


def _beside(e: PartitionEvidence) -> pd.DataFrame:
    """Our plan beside the best that one processor, all cores or a stock engine on all cores take; the mean first."""
    f, own = e.beside, e.ours.set_index("model")
    others = {"best": "the best", "single": "the better processor", "all_cores": ALL_CORES, "stock": "the best stock engine"}
    speedups = pd.DataFrame({f"speedup over {name}": f[key] / f["ours"] for key, name in others.items()})
    told = own[["repeat", "reason"]].reindex(f.index)
    found = pd.DataFrame(
        {"model": f.index, "ours_ms": f["ours"], "best_ms": f["best"], "best way": f["way"], **speedups, **told}
    )
    means = {name: estimate(geomean, column.dropna()) for name, column in speedups.items()}
    first = {"model": f"all {len(f)} models, mean", **{name: made.value for name, made in means.items()}, "reason": ""}
    ends = [{"model": f"95 %, {end}", **{name: getattr(made, end) for name, made in means.items()}} for end in ("low", "high")]
    faster = {name: (~(column >= 1)).sum() for name, column in speedups.items()}
    rows = pd.DataFrame([first, *ends, {"model": "models on which it is faster than ours", **faster}])
    return pd.concat([rows, found], ignore_index=True)[list(found)].fillna({"reason": "", "best way": ""}).round(4)


def _models(e: PartitionEvidence) -> pd.DataFrame:
    """Table 3: models end to end."""
    own = e.planned.set_index("model").reindex([model for model in e.end_to_end.index if model in set(e.planned["model"])])
    times = e.end_to_end.reindex(own.index)
    stock, single = e.stock.reindex(own.index), times.reindex(columns=[CPU, GPU]).min(axis=1)
    speedups = {way: single / times.get(way, np.nan) for way in (GREEDY, FIXED, EQUAL, ALL_CORES)}
    names = stock[stock.notna().any(axis=1)].idxmin(axis=1).reindex(own.index)
    found = {
        "model": own.index,
        **{f"{way}_ms": times.get(way, np.nan) for way in (CPU, GPU, OURS)},
        **own[["predicted_ms", "slowdown"]],
        "speedup": single / times[OURS],
        **{f"{'all_cores' if way == ALL_CORES else way}_speedup": speedup for way, speedup in speedups.items()},
        "stock_speedup": single / stock.min(axis=1) if len(stock.columns) else np.nan,
        "stock": names.astype(object).fillna(""),
        **own[["splits", "steps"]].astype(int),
        "plan_gap": own["plan_gap"],
        "plan_s": own["plan_seconds"],
        "repeat": own["repeat"],
        "error": own["error"].map("{:.1e}".format),
        "paper_speedups": [" / ".join(f"{value:.2f}" for value in paper.END_TO_END.get(str(model), ())) for model in own.index],
    }
    return pd.DataFrame(found).round(4)


def _ablation(e: PartitionEvidence) -> pd.DataFrame:
    """Table 4: without dispatch features, and with event waits."""
    rows = [*_by_kind(e, (OURS, PLAIN, EVENTS)).values()]
    rows += [{"device": "paper: Moto 2022", "method": name, **_printed(values)} for name, values in paper.ABLATION.items()]
    return pd.DataFrame(rows).round(3)


def _handshakes(e: PartitionEvidence) -> pd.DataFrame:
    """Return the cost of a step of nothing, by synchronisation; and by how much split layers take longer by events (5.5)."""
    f = e.handshakes
    longer = {f"{kind} over polling_us": {"events": _longer_by_events(e, kind)} for kind in _KINDS}
    return pd.DataFrame(
        {
            "synchronisation": f["synchronisation"],
            **f[["least_us", "median_us"]].round(2),
            "paper_us": f["synchronisation"].map(dict(zip(("events", "polling"), paper.HANDSHAKE_US, strict=True))),
            **{name: f["synchronisation"].map(us).round(2) for name, us in longer.items()},
            "note": f["note"],
        }
    )


def _longer_by_events(e: PartitionEvidence, kind: str) -> float:
    """Return the median over split layers of a kind of their time by events less that by polling, in us."""
    rows = e.layers[(e.layers["kind"] == kind) & e.layers["way"].isin([OURS, EVENTS])]
    split = rows[(rows["channels"] > 0) & (rows["channels"] < rows["outputs"])]
    us = split.pivot_table(index="name", columns="way", values="us", aggfunc="first").reindex(columns=[OURS, EVENTS])
    return float((us[EVENTS] - us[OURS]).median())


#: Every table by id.
PARTITION_TABLES: Mapping[str, TableSpec[PartitionEvidence]] = registry(
    TableSpec("partition_beside", "Our plan over the best of all other ways", _beside, ("ours",)),
    TableSpec("partition_table_01", "Errors of the predictors (Table 1)", _errors, ("tested",)),
    TableSpec("partition_table_02", "Layers split, mean speedup (Table 2)", _layers, ("speedups",), _layers_note),
    TableSpec("partition_table_03", "Models end to end (Table 3)", _models, ("planned",)),
    TableSpec("partition_table_04", "Without dispatch features or polling (Table 4)", _ablation, ("speedups",)),
    TableSpec("partition_handshakes", "Handshakes", _handshakes, ("handshakes",)),
)


def _curve(e: PartitionEvidence, figure: str) -> pd.DataFrame:
    found = e.curves[e.curves["figure"] == figure].sort_values("outputs")
    if found.empty:
        raise NotMeasuredError(f"there is no curve of {figure}")
    return found


def _both_processors(e: PartitionEvidence) -> Any:
    """Figure 2: both processors over the output channels of a linear layer, with what half of the runs lie within."""
    f = _curve(e, "figure_02")
    figure, (axis,) = canvas(7.0, 3.6)
    for side, color in zip((CPU, GPU), PALETTE, strict=False):
        axis.plot(f["outputs"], f[f"{side}_us"], color=color, label=side.upper())
        axis.fill_between(f["outputs"], f[f"{side}_low_us"], f[f"{side}_high_us"], color=color, alpha=0.25, linewidth=0)
    name_axes(axis, _CHANNELS, "us")
    legend(axis)
    return figure


def _predictions(curve: str, *shown: str) -> Callable[[PartitionEvidence], Any]:
    """Return what draws the time of a layer on the GPU, and what predictors say of it."""

    def drawn(e: PartitionEvidence) -> Any:
        f = _curve(e, curve)
        figure, (axis,) = canvas(8.0, 3.8)
        axis.plot(f["outputs"], f["gpu_us"], color=INK, linewidth=1.5, label="measured")
        for place, name in enumerate(shown):
            axis.plot(f["outputs"], f[f"{name}_us"], color=PALETTE[place], linewidth=1.2, label=name)
        name_axes(axis, _CHANNELS, "us on the GPU")
        legend(axis, 2)
        return figure

    return drawn


def _discontinuities(e: PartitionEvidence) -> Any:
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


def _importance(e: PartitionEvidence) -> Any:
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
    FigureSpec("partition_figure_02", "CPU and GPU (Figure 2)", _both_processors, ("curves",)),
    FigureSpec(
        "partition_figure_03",
        "Predictors on shapes alone (Figure 3)",
        _predictions("figure_03", "plain", "linear regression", "network"),
        ("curves",),
    ),
    FigureSpec(
        "partition_figure_05", "With dispatch features (Figure 5)", _predictions("figure_05", "ours", "plain"), ("curves",)
    ),
    FigureSpec("partition_figure_06", "Where latency jumps (Figure 6)", _discontinuities, ("curves",)),
    FigureSpec("partition_figure_07", "What predictors rely on (Figure 7)", _importance, ("importance",)),
)
