"""First inferences within a budget: figures of merit, the tables and the page of a device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.joint.pairs import EQUAL, PAID_TOGETHER, PAIR_WAYS, PROPORTIONAL, TOGETHER
from edgeplan.chapters.joint.ways import COLD, JOINT, PAID, PLAIN
from edgeplan.reporting import kit
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.drawing import PALETTE, canvas, legend, name_axes
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, geomean
from edgeplan.reporting.grade import Graded, graded
from edgeplan.reporting.page import CardOf
from edgeplan.support.tensors import OUTPUT_TOLERANCE

_ABOUT = (
    "The first inference of a process that has a budget of memory: kernels are made, weights are read and steps executed "
    "within it, as one plan. Each model is started in fresh processes in turns, in a memory cgroup, beside a plan of memory "
    "that makes its kernels first and engines with mapped weights. Times are from a process's start to its first outputs."
)
_WITHIN = 0.15
_MOST = 0.5  # of its starts a way may lose less than this share, or it does not live
_MIB = 1 << 20
_MAPPED = "edgeplan-mapped"  # what first inferences are held to where no stock engine lives
_PLANNED = "resnet50"  # whose planning time has a bar
BARS = (
    Bar("joint.first_within_budget", "first inference within the budget over the best other way, mean", high=0.8, aim="0.6"),
    Bar("joint.first_over_stock", "first inference over the fastest stock engine that lives there, mean", high=0.5, aim="0.3"),
    Bar("joint.killed", "starts of these plans that were killed", high=0),
    Bar("joint.refused", "models of which no plan of ours is within the budget", high=0),
    Bar("joint.gap_max", "planned makespan over its proven bound, largest gap", high=0.05, aim="0.02"),
    Bar("joint.makespan_within_15pct", "first inferences within 15 % of their plan", low=0.75, aim="0.9"),
    Bar("joint.peak_over_budget_max", "peak over the budget in a group that pays for all, largest", high=1.0),
    Bar("joint.plan_seconds", "s to plan ResNet-50 in all ways", high=60, aim="20"),
    Bar("joint.special_cases_worse", "plans that are worse than their special cases with the same costs", high=0),
    Bar("joint.models_together", "round of two models over the best of two processes with shares, mean", high=0.95, aim="0.8"),
    Bar("joint.models_together_worst", "round of two models over the best of two processes with shares, worst", high=1.02),
    Bar("joint.pair_peak_over_budget_max", "peak of two models over their budget in a group that pays for all", high=1.0),
    Bar("joint.outputs_differ", "models whose outputs differ from ONNX Runtime's", high=0),
)
_CARDS = (
    CardOf("first inference within the budget over the best other way", ("joint.first_within_budget",), "times"),
    CardOf("planned over proven bound, largest gap", ("joint.gap_max",), share=True),
    CardOf("first inferences within 15 % of their plan", ("joint.makespan_within_15pct",), share=True),
    CardOf("two models in turns over two processes with shares", ("joint.models_together",), "times"),
    CardOf("peak over the budget, largest", ("joint.peak_over_budget_max",), "times"),
)


@dataclass(frozen=True)
class JointEvidence:
    """Rows of the stage `joint`.

    Attributes:
        device: its name.
        starts: one row a start: model, way, turn (none of the run that pays for all), budget and peak (bytes over idle),
            first_ms (from the start of the process), opened_ms (from opening the plan), failures, killed, reason; of plans
            predicted_ms (from opening), makespan_ms and bound_ms (of kernels, weights and steps), later_ms, worse,
            plan_seconds; error of the outputs. Of two models that run in turns one row a process of each way, with round_ms:
            one inference of each.
        environment: of the machine.
    """

    device: str
    starts: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def medians(self) -> pd.DataFrame:
        """Medians of each model and way that lived in more than half of its turns, over these; kills are counted apart."""
        turns = self.starts[self.starts["turn"].notna() & ~self.starts["way"].isin(PAIR_WAYS)]
        died = turns.groupby(["model", "way"], sort=False)["first_ms"].transform(lambda times: times.isna().mean() >= _MOST)
        numbers = ["budget", "first_ms", "opened_ms", "peak", "predicted_ms", "makespan_ms", "bound_ms", "later_ms", "worse"]
        numbers.append("plan_seconds")
        return turns[~died].groupby(["model", "way"], sort=False)[numbers].median().reset_index()

    @cached_property
    def models(self) -> pd.DataFrame:
        """By model: the medians of our plan (`first`), of the best other way that lived (`best`), and which it was."""
        rows = []
        for model, own in self.medians.groupby("model", sort=False):
            times = own.set_index("way")
            others = times["first_ms"].drop(JOINT, errors="ignore")
            row: dict[str, Any] = {"model": model, "best": others.min(), "best_way": others.idxmin() if len(others) else ""}
            if JOINT in times.index:
                row |= {str(name): value for name, value in times.loc[JOINT].items()}
                row["first"] = row["first_ms"]
            rows.append(row)
        return pd.DataFrame(rows).reindex(columns=["model", "first", "best", "best_way", *self.medians.columns[2:]])

    @cached_property
    def stock(self) -> pd.DataFrame:
        """By model: our median, and that of the fastest stock engine that lived, or of mapped weights where none did."""
        rows = []
        for model, own in self.medians.groupby("model", sort=False):
            times = own.set_index("way")["first_ms"]
            engines = times.drop([JOINT, PLAIN, COLD, _MAPPED], errors="ignore").dropna()
            lived = not engines.empty
            best = engines.min() if lived else times.get(_MAPPED, math.nan)
            name = engines.idxmin() if lived else _MAPPED
            rows.append({"model": model, "first": times.get(JOINT, math.nan), "best": best, "stock": name, "lived": lived})
        return pd.DataFrame(rows, columns=["model", "first", "best", "stock", "lived"])

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """By pair of models: the median round of each way; nothing of a way that failed in half of its processes or more."""
        turns = self.starts[self.starts["way"].isin((TOGETHER, EQUAL, PROPORTIONAL))]
        if turns.empty:
            return pd.DataFrame(columns=["model", "budget", TOGETHER, EQUAL, PROPORTIONAL, "best", "over_best"])
        failed = turns.groupby(["model", "way"])["round_ms"].transform(lambda times: times.isna().mean() >= _MOST)
        table = turns[~failed].pivot_table(index="model", columns="way", values="round_ms", aggfunc="median", sort=False)
        table = table.reindex(columns=[TOGETHER, EQUAL, PROPORTIONAL])
        best = table[[EQUAL, PROPORTIONAL]].min(axis=1)
        budgets = turns.groupby("model")["budget"].first()
        return table.assign(budget=budgets, best=best, over_best=table[TOGETHER] / best).reset_index()

    @cached_property
    def paid(self) -> pd.DataFrame:
        """The run of each model's plan in a group that pays for its libraries."""
        return self.starts[self.starts["way"] == PAID]


def first_within_budget(e: JointEvidence) -> Estimate:
    """Geometric mean over models of our first inference / that of the best other way that lived in the same budget."""
    known = e.models.dropna(subset=["first", "best"])
    return estimate(geomean, known["first"] / known["best"])


def first_over_stock(e: JointEvidence) -> Estimate:
    """Geometric mean over models of our first inference / that of the fastest stock engine that lived, or of mapped weights."""
    known = e.stock.dropna(subset=["first", "best"])
    return estimate(geomean, known["first"] / known["best"])


def stock_lived(e: JointEvidence) -> float:
    """Models of which a stock engine lived within the budget."""
    return float(e.stock["lived"].sum()) if len(e.stock) else math.nan


def models_together(e: JointEvidence) -> Estimate:
    """Geometric mean over pairs of a round as one program / the best of equal and proportional shares in two processes."""
    return estimate(geomean, e.rounds["over_best"].dropna())


def models_together_worst(e: JointEvidence) -> float:
    """Max over pairs of the same."""
    return float(e.rounds["over_best"].max())


def pair_peak_over_budget_max(e: JointEvidence) -> float:
    """Max over pairs of the peak over idle / the budget, in a group that pays for all."""
    paid = e.starts[e.starts["way"] == PAID_TOGETHER]
    return float((paid["peak"] / paid["budget"]).max())


def killed(e: JointEvidence) -> float:
    """Starts of our plans that the system killed, the run that pays for all among them."""
    return float(e.starts[e.starts["way"].isin([JOINT, PAID, TOGETHER, PAID_TOGETHER])]["killed"].sum())


def refused(e: JointEvidence) -> float:
    """Models of which no plan of ours is within the budget: the other figures are without them."""
    return float(((e.starts["way"] == JOINT) & e.starts["turn"].isna() & (e.starts["reason"] != "")).sum())


def gap_max(e: JointEvidence) -> float:
    """Max over models of planned makespan / proven bound - 1."""
    known = e.models.dropna(subset=["makespan_ms", "bound_ms"])
    return float((known["makespan_ms"] / known["bound_ms"] - 1).max())


def makespan_within_15pct(e: JointEvidence) -> Estimate:
    """Share of models whose median from opening the plan to the first outputs is within 15 % of what was planned."""
    known = e.models.dropna(subset=["opened_ms", "predicted_ms"])
    return estimate(np.mean, (known["opened_ms"] / known["predicted_ms"] - 1).abs() <= _WITHIN)


def peak_over_budget_max(e: JointEvidence) -> float:
    """Max over models of the peak over idle / the budget, in a group that pays for all."""
    return float((e.paid["peak"] / e.paid["budget"]).max())


def plan_seconds(e: JointEvidence) -> float:
    """Seconds to plan ResNet-50 in all ways, from predicted costs."""
    return float(e.models.set_index("model")["plan_seconds"][_PLANNED])


def special_cases_worse(e: JointEvidence) -> float:
    """Sum over models of special cases with the same costs that are better than the plan: kernels first, memory alone."""
    return float(e.models["worse"].sum())


def outputs_differ(e: JointEvidence) -> float:
    """Models whose outputs differ from ONNX Runtime's by more than rounding, or were not compared."""
    return float((~(e.paid["error"] <= OUTPUT_TOLERANCE)).sum())


_FIGURES: tuple[Callable[[JointEvidence], float | Estimate], ...] = (
    *(first_within_budget, first_over_stock, stock_lived, refused, killed, gap_max, makespan_within_15pct),
    *(models_together, models_together_worst, pair_peak_over_budget_max),
    *(peak_over_budget_max, plan_seconds, special_cases_worse, outputs_differ),
)


def joint_metrics(e: JointEvidence) -> dict[str, float]:
    """Return all figures that were measured, by key."""
    return figures_of_merit({figure.__name__: figure for figure in _FIGURES}, e, "joint.")


def first_table(e: JointEvidence) -> pd.DataFrame:
    """First inferences within the budget: ours beside the best other way, and what was planned."""
    f = e.models
    if f.empty:
        raise kit.NotMeasuredError("no way lived")
    paid = e.paid.set_index("model")["peak"] / _MIB
    shown = {
        "model": f["model"],
        "budget_mib": f["budget"] / _MIB,
        "first_ms": f["first"],
        "best_other_ms": f["best"],
        "best_other": f["best_way"],
        "over_best": f["first"] / f["best"],
        "opened_ms": f["opened_ms"],
        "planned_ms": f["predicted_ms"],
        "gap": f["makespan_ms"] / f["bound_ms"] - 1,
        "peak_mib": f["model"].map(paid),
        "later_planned_ms": f["later_ms"],
    }
    return pd.DataFrame(shown).round(4)


def ways_table(e: JointEvidence) -> pd.DataFrame:
    """Each way of each model: how it started, or why it did not."""
    turns = e.starts[(e.starts["way"] != PAID) & ~e.starts["way"].isin(PAIR_WAYS)]
    if turns.empty:
        raise kit.NotMeasuredError("nothing was started")
    grouped = turns.groupby(["model", "way"], sort=False)
    found = grouped.agg(first_ms=("first_ms", "median"), least_ms=("first_ms", "min"), killed=("killed", "sum"))
    return found.assign(reason=grouped["reason"].agg(lambda texts: next(filter(None, texts), ""))).reset_index().round(4)


def pairs_table(e: JointEvidence) -> pd.DataFrame:
    """Two models in turns: a round as one program, and in two processes with shares of the budget."""
    f = e.rounds
    if f.empty:
        raise kit.NotMeasuredError("no two models were run in turns")
    paid = e.starts[e.starts["way"] == PAID_TOGETHER].set_index("model")["peak"] / _MIB
    shown = {
        "pair": f["model"],
        "budget_mib": f["budget"] / _MIB,
        "one_program_ms": f[TOGETHER],
        "equal_shares_ms": f[EQUAL],
        "proportional_shares_ms": f[PROPORTIONAL],
        "over_best": f["over_best"],
        "peak_mib": f["model"].map(paid),
    }
    return pd.DataFrame(shown).round(4)


def starts_figure(e: JointEvidence) -> Any:
    """First inferences by model and way, those that lived."""
    times = e.medians.pivot_table(index="model", columns="way", values="first_ms", sort=False)
    if times.empty:
        raise kit.NotMeasuredError("no way lived")
    figure, (axis,) = canvas(9.0, 4.2)
    places, width = np.arange(len(times)), 0.8 / len(times.columns)
    for number, way in enumerate(times.columns):
        axis.bar(places + width * (number - (len(times.columns) - 1) / 2), times[way], width, color=PALETTE[number], label=way)
    axis.set_xticks(places, list(times.index), rotation=30, ha="right", fontsize=8)
    name_axes(axis, "", "start of the process to first outputs (ms)")
    legend(axis, 2)
    return figure


def findings(e: JointEvidence) -> tuple[str, ...]:
    """Tell where another way starts sooner, and what did not live."""
    f = e.models.dropna(subset=["first", "best"])
    slower = f[f["first"] > f["best"]]
    told = [f"{row['model']} starts sooner by {row['best_way']}: {row['best']:.0f} ms." for _, row in slower.iterrows()]
    dead = e.starts[(e.starts["reason"] != "")].drop_duplicates(["model", "way"])
    told += (dead["model"] + " (" + dead["way"] + "): " + dead["reason"] + ".").tolist()
    return tuple(told)


def grade(e: JointEvidence) -> Graded | None:
    """The grade of the figures, by what others did on the machine meanwhile."""
    return graded(e.environment)


TABLES: Mapping[str, kit.TableSpec[JointEvidence]] = kit.registry(
    kit.TableSpec("joint_first", "First inferences within a budget", first_table, ("starts",)),
    kit.TableSpec("joint_pairs", "Two models in turns within one budget", pairs_table, ("starts.round_ms",)),
    kit.TableSpec("joint_ways", "All ways to start within a budget", ways_table, ("starts",)),
)
FIGURES: Mapping[str, kit.FigureSpec[JointEvidence]] = kit.registry(
    kit.FigureSpec("joint_starts", "Start of the process to first outputs, by way", starts_figure, ("starts.first_ms",)),
)
JOINT_REPORT = ChapterReport(
    id="joint",
    title="First inferences within a budget",
    about=_ABOUT,
    headline="joint_starts",
    unfolded=("joint_first", "joint_pairs"),
    cards=_CARDS,
    bars=BARS,
    tables=TABLES,
    figures=FIGURES,
    shares=("joint.gap_max", "joint.makespan_within_15pct"),
    metrics=joint_metrics,
    findings=lambda evidence, *_: findings(evidence),
    grade=grade,
    evidence=JointEvidence,
    frames={"starts": ("model", "way", "turn", "first_ms", "killed", "reason", "round_ms")},
)
#: The stage `joint_tables`.
write = JOINT_REPORT.write
