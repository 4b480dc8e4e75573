"""Plans that check themselves: what was measured of them, the figures of merit, the table and the page of a pair."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.eop.ways import recurrent_variants
from edgeplan.chapters.partition.evaluation.eop_tables import EOP_FIGURES, EOP_TABLES
from edgeplan.chapters.partition.evaluation.tables import CPU, GPU, PARTITION_FIGURES, PARTITION_TABLES
from edgeplan.chapters.partition.settings import ALL_CORES, PLANNED, SLOWER, WORTH_SPLITTING
from edgeplan.reporting.bars import PASS, UNDECIDED, Bar, graded
from edgeplan.reporting.chapter_report import ChapterReport, FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, geomean
from edgeplan.reporting.page import CardOf, Line

_ABOUT = (
    "Each model is planned by a sweep of its own steps, with nothing known of the pair before. The plan is run beside each "
    "processor alone, oneDNN and stock engines on all cores, each in a process of its own, and the fastest is what a user gets."
)
_WITHIN = 0.15
_SEVERAL = 2
_OPERATORS = ("operators", "operators_alone")
_SLOWER = "partition.slower_than_best_models"
_BARS = (
    Bar(_SLOWER, "models whose checked plan is over 2 % slower than another way on fresh runs, for certain", high=0, aim="0"),
    Bar("partition.seconds_to_checked_plan", "s to a checked plan, largest", high=60, aim="20"),
    Bar("partition.swept_within_15pct", "plans for both within 15 % of what their sweep says", low=0.85, aim="0.95"),
    Bar("partition.written_within_15pct", "plans within 15 % of what they say, ten minutes later", low=0.85, aim="0.95"),
)
#: Of two processors that are cores of one CPU: stock engines have both cores, so that no speed-up over them is asked for.
_BARS_OF_CORES = (
    Bar("partition.speedup_of_pairs", "plan for both over the better of its processors, mean", low=1.35, aim="1.45"),
    Bar("eop.recurrent_slower", "recurrent variants of EOP's Figure 9, of 28, that are slower by this rule", high=2, aim="0"),
)
#: Of a second processor of its own.
_BARS_OF_A_GPU = (
    Bar(
        "partition.speedup_over_best",
        "checked plan over the best of CPU, GPU, oneDNN and stock engines on all cores, mean",
        low=1.2,
        aim="1.35",
    ),
)
#: All that is asked of some pair.
ASKED = (*_BARS_OF_A_GPU, *_BARS_OF_CORES, *_BARS)
_CARDS = (
    CardOf("runs {} as fast as the best other way", "partition.speedup_over_best", "times", paper="over the GPU alone"),
    CardOf("runs on both {} as fast as on the better of them", "partition.speedup_of_pairs", "times"),
    CardOf("could gain {} over the best alone, at most", "partition.most_gain", "times"),
    CardOf("takes {} to a checked plan, at most", "partition.seconds_to_checked_plan", "s"),
)


#: Networks that speed-ups are means over, whichever others are checked.
NETWORKS = (
    *("vgg16", "resnet18", "resnet34", "inception_v3", "resnet50", "googlenet", "squeezenet", "mobilenetv1", "mobilenetv2"),
    *("alexnet", "vgg11", "densenet121", "darknet19", "repvgg_a0"),
)


@dataclass(frozen=True)
class CheckedEvidence:
    """Rows of the stage `partition_checked`.

    Attributes:
        pair: its name.
        checked: one row a model and way, on fresh runs: model, way, median_ms, chosen (the way that was returned), stock (of a
            stock engine), over_best (of the chosen way over the best other one but stock engines) with over_low and over_high,
            seconds to the plan, planned_ms (as predicted), splits, steps, reason, check_ms (when the plan was chosen), ops_ms
            (the sum of its operators' times by the sweep), machine (the key in `machines` of what the row is of).
        later: one row a model and new process that ran its plan minutes later: model, process, written_ms (as the plan says),
            unscaled_ms (without the factor from running it), median_ms, waited_s, reason, machine.
        environment: of the machine; `machines` tells the processor and the cores of each that rows are of, `asked` the models
            that were to be planned, and `second_on_cores` whether the second processor computes on cores of the CPU.
    """

    pair: str
    checked: pd.DataFrame
    later: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def plans(self) -> pd.DataFrame:
        """By model: the way that was returned, ms on fresh runs, and what others take.

        Returns:
            way, chosen (not a number where it did not run), planned (that on both processors), cpu, gpu, all_cores (the faster
            layout), ours (the best of these three), stock, best (of these two), most_gain (`ours` over the least time in which
            both could share all work), over_best with its interval, predicted, seconds, splits, reason, operators (the sum of
            the planned operators' times), operators_alone (the smaller sum of a processor alone).
        """
        return self._by_model(_of_one_machine(self.kinds["models"]))

    @cached_property
    def networks(self) -> pd.DataFrame:
        """The same of the 14 networks of images that all pairs are compared on; recurrent ones and a token's are told apart."""
        return self.plans[self.plans.index.isin(NETWORKS)]

    @cached_property
    def recurrent(self) -> pd.DataFrame:
        """The same of the recurrent variants of EOP's Figure 9; none where they are not planned on this pair."""
        return self._by_model(_of_one_machine(self.kinds["recurrent variants"]))

    @cached_property
    def kinds(self) -> Mapping[str, pd.DataFrame]:
        """Parts of the rows have figures of one machine each."""
        recurring = self.checked["model"].isin([*recurrent_variants()])
        return {"models": self.checked[~recurring], "recurrent variants": self.checked[recurring], "later runs": self.later}

    def _by_model(self, checked: pd.DataFrame) -> pd.DataFrame:
        rows = []
        for model, own in checked.groupby("model", sort=False):
            times, chosen = own.set_index("way")["median_ms"], own[own["chosen"] == 1]
            sums = own.set_index("way")["ops_ms"]
            alone = times[(own["stock"] == 0).to_numpy() & ~times.index.isin([PLANNED])]
            cpu, gpu = alone[alone.index == CPU].min(), times.get(GPU, np.nan)
            stock = own[own["stock"] == 1]["median_ms"].min()
            first = own.iloc[0]
            row = {"model": model, "way": next(iter(chosen["way"]), ""), "chosen": chosen["median_ms"].min()}
            row |= {"planned": times.get(PLANNED, np.nan), CPU: cpu, GPU: gpu}
            row |= {"all_cores": alone[alone.index.str.startswith(ALL_CORES)].min(), "ours": alone.min(), "stock": stock}
            row |= {"best": pd.Series([alone.min(), stock]).min(), "most_gain": alone.min() * (1 / cpu + 1 / gpu)}
            row |= {name: first[name] for name in ("over_best", "over_low", "over_high", "seconds", "splits", "reason")}
            row |= {"operators": sums.get(PLANNED, np.nan), "operators_alone": sums.reindex([CPU, GPU]).min()}
            rows.append(row | {"predicted": first["planned_ms"]})
        return pd.DataFrame(rows).set_index("model") if rows else pd.DataFrame()


def _of_one_machine(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the machine that has most models, the present one of equal ones: figures are of one machine each."""
    machine = rows.groupby("machine", sort=False)["model"].nunique().idxmax() if len(rows) else ""
    return rows[rows["machine"] == machine]


def speedup_over_best(e: CheckedEvidence) -> Estimate:
    """Geometric mean over `NETWORKS` of the best time of CPU, GPU, oneDNN and stock engines on all cores / the checked plan's.

    All are fresh runs, in the same turns. A plan that is one of these counts as that one.
    """
    known = e.networks.dropna(subset=["chosen", "best"])
    return estimate(geomean, known["best"] / known["chosen"])


def slower_than_best_models(e: CheckedEvidence) -> float:
    """Models whose checked plan takes over 1.02 times as long as the best other way, for certain.

    The whole 95 % interval of the ratio lies above, over turns of both on fresh runs. A plan that did not run is slower.
    """
    return _surely_slower(e.plans)


def recurrent_slower(e: CheckedEvidence) -> float:
    """Recurrent variants of EOP's Figure 9, of 28, that are slower by the rule of `slower_than_best_models`."""
    return _surely_slower(e.recurrent) if len(e.recurrent) == len(recurrent_variants()) else math.nan


def _surely_slower(plans: pd.DataFrame) -> float:
    return float((plans["chosen"].isna() | (plans["over_low"] > SLOWER)).sum())


def speedup_of_pairs(e: CheckedEvidence) -> Estimate:
    """Geometric mean of the time of the better processor of the pair / that of the plan for both."""
    known = e.networks.dropna(subset=["planned", CPU, GPU])
    return estimate(geomean, known[[CPU, GPU]].min(axis=1) / known["planned"])


def most_gain(e: CheckedEvidence) -> Estimate:
    """Geometric mean over `NETWORKS` of the best time of CPU, GPU and all cores * (1 / the CPU's + 1 / the GPU's)."""
    return estimate(geomean, e.networks["most_gain"].dropna())


def swept_within_15pct(e: CheckedEvidence) -> Estimate:
    """Share of plans for both processors whose time on fresh runs is within 15 % of what the sweep predicted."""
    known = e.plans.dropna(subset=["planned", "predicted"])
    return estimate(np.mean, (known["planned"] / known["predicted"] - 1).abs() <= _WITHIN)


def later_within_15pct(column: str) -> Callable[[CheckedEvidence], Estimate]:
    """Share of returned plans whose median of three new processes, ten minutes later, is within 15 % of what they say.

    One that did not run in each of them is not. They say written_ms, or unscaled_ms without the factor from running them once.
    """

    def found(e: CheckedEvidence) -> Estimate:
        rows = _of_one_machine(e.later)
        f, failed = rows.groupby("model")[["median_ms", column]].median(), rows[rows["median_ms"].isna()]["model"]
        return estimate(np.mean, ((f["median_ms"] / f[column] - 1).abs() <= _WITHIN) & ~f.index.isin(failed))

    return found


#: All figures that were measured, by key.
checked_metrics = partial(
    figures_of_merit,
    {
        "partition.speedup_over_best": speedup_over_best,
        "partition.slower_than_best_models": slower_than_best_models,
        "partition.speedup_of_pairs": speedup_of_pairs,
        "partition.seconds_to_checked_plan": lambda e: float(e.plans["seconds"].max()),
        "partition.most_gain": most_gain,
        "partition.swept_within_15pct": swept_within_15pct,
        "partition.written_within_15pct": later_within_15pct("written_ms"),
        "eop.recurrent_slower": recurrent_slower,
    },
)


def plans(e: CheckedEvidence) -> pd.DataFrame:
    """Plans that check themselves: who wins on each model, on fresh runs."""
    f = e.plans
    names = ("chosen", "planned", CPU, GPU, "all_cores", "stock", "predicted")
    over = {"speedup over the best": f["best"] / f["chosen"], "of both processors": f["ours"] / f["planned"]}
    shown = f.rename(columns={name: f"{name}_ms" for name in names}).drop(columns=["best", "ours", *_OPERATORS])
    return shown.assign(**over).reset_index().round(4)


def operators(e: CheckedEvidence) -> pd.DataFrame:
    """LiPG's Table 3 with its columns of individual operators: their sum as planned, and the model end to end, over the GPU."""
    f = e.plans.dropna(subset=["operators"]) if len(e.plans) else e.plans
    if f.empty:
        raise NotMeasuredError("no times of individual operators are stored")
    own = pd.DataFrame({"device": e.pair, "model": f.index, "baseline_ms": f[GPU].to_numpy()})
    for name, column in (("operators", "operators"), ("end_to_end", "planned")):
        own[f"{name}_ms"] = f[column].to_numpy()
        own[f"{name}_speedup"] = own["baseline_ms"] / own[f"{name}_ms"]
    own["over the better's operators"] = (f["operators_alone"] / f["operators"]).to_numpy()
    columns = [name for name in own if name != "over the better's operators"]
    printed = [
        (f"paper: {device}", model, *values)
        for device, of_device in paper.OPERATORS.items()
        for model, values in of_device.items()
    ]
    return pd.concat([own, pd.DataFrame(printed, columns=columns)], ignore_index=True).round(3)


def _bars(e: CheckedEvidence) -> tuple[Bar, ...]:
    """Return the bars of the pair: more is asked of a second processor of its own than of a core that stands in for one."""
    return (*(_BARS_OF_CORES if e.environment["second_on_cores"] else _BARS_OF_A_GPU), *_BARS)


def _missing(e: CheckedEvidence) -> list[str]:
    """Name the models that were to be planned and have no rows."""
    return [model for model in e.environment["asked"] if model not in e.plans.index]


def _counted(e: CheckedEvidence, lines: Sequence[Line]) -> list[Line]:
    """Have the count of slower plans say of how many, and pass where no model is missing."""
    missing, counted = _missing(e), list(lines)
    for k, (bar, line) in enumerate(zip(_bars(e), lines, strict=True)):
        if bar.key == _SLOWER:
            verdict = UNDECIDED if missing and line.verdict == PASS else line.verdict
            of = f"{len(e.plans)} measured, {len(e.environment['asked'])} asked for"
            counted[k] = replace(line, value=f"{line.value} of {of}", verdict=verdict)
    return counted


def _findings(e: CheckedEvidence, *_: object) -> tuple[str, ...]:
    """Answer whether the pair is worth splitting models on, and say what did not run."""
    f = e.plans
    told = []
    if f["most_gain"].notna().any():
        most, found = most_gain(e).value, speedup_over_best(e).value
        advice = "do not split here" if most < WORTH_SPLITTING else "a split may pay, where its check says so"
        wins = ", ".join(f"{way} on {count}" for way, count in f["way"].value_counts().items() if way)
        told.append(
            f"Should I split on {e.pair}? Both processors could gain at most {most:.2f} times over the best alone: {advice}. "
            f"Fastest of the ways that were checked: {wins}. The checked plan is {found:.2f} times as fast as the best of them "
            "and of stock engines."
        )
    if len(slower := f[f["over_best"] > SLOWER]):
        own = ", ".join(f"{r.Index} {r.over_best:.2f} ({r.over_low:.2f} to {r.over_high:.2f})" for r in slower.itertuples())
        told.append(f"By their medians {len(slower)} of {len(f)} plans are over 2 % slower than the best other way: {own}.")
    if len(beyond := f[f["most_gain"] < 1]):
        told.append(f"CPU and GPU together could not reach all cores on {', '.join(beyond.index)}; the means count that.")
    if missing := _missing(e):
        told.append(f"No rows of {len(missing)} of {len(e.environment['asked'])} models: {', '.join(missing)}.")
    if math.isfinite(written := later_within_15pct("written_ms")(e).value):
        unscaled = later_within_15pct("unscaled_ms")(e).value
        told.append(
            f"Ten minutes later {written:.0%} of the plans are within 15 % of what they say, {unscaled:.0%} of what they would "
            "say without the factor from running them."
        )
    shown = pd.concat([_of_one_machine(e.kinds[kind]) for kind in ("models", "recurrent variants")])
    left = shown[(shown["reason"] != "") & (shown["way"] != "")]
    told += (left["model"] + " (" + left["way"] + "): " + left["reason"] + ".").tolist()
    lost = f[f["chosen"].isna()]
    told += [f"{model} has no plan: {reason}." for model, reason in lost["reason"].items() if reason]
    return (*told, *_machines(e))


def _machines(e: CheckedEvidence) -> list[str]:
    """Tell which figures are of which machine, where rows of several are stored."""
    if len({*e.checked["machine"], *e.later["machine"]}) < _SEVERAL:
        return []
    told = []
    for what, rows in e.kinds.items():
        if len(own := _of_one_machine(rows)):
            of, count = e.environment["machines"][own["machine"].iloc[0]], own["model"].nunique()
            left = rows["model"].nunique() - count
            beside = f" ({left} more of another machine alone are in no figure)" if left else ""
            told.append(f"{what} ({count}) on {of['cpu']}, {of['cores']} cores{beside}")
    return [f"Rows are of several machines, each figure of one: {'; '.join(told)}."]


CHECKED_TABLES: Mapping[str, TableSpec[CheckedEvidence]] = registry(
    TableSpec("partition_checked", "Plans that check themselves: who wins on each model", plans, ("plans",)),
    TableSpec("partition_operators", "Individual operators and end to end (LiPG, Table 3)", operators, ("plans",)),
)
CHECKED_REPORT = ChapterReport(
    id="partition_checked",
    title="Plans that check themselves",
    about=_ABOUT,
    headline="",
    unfolded=("partition_checked",),
    cards=_CARDS,
    bars=_bars,
    tables=CHECKED_TABLES,
    figures={},
    metrics=checked_metrics,
    findings=_findings,
    grade=lambda evidence: graded(evidence.environment),  # by what others did on the machine meanwhile
    evidence=CheckedEvidence,
    completed=_counted,
    frames={
        "checked": ("model", "way", "median_ms", "chosen", "stock", "over_low", "reason", "ops_ms", "machine"),
        "later": ("model", "written_ms", "unscaled_ms", "median_ms", "machine"),
    },
)
#: The stage `partition_checked_tables`.
write = CHECKED_REPORT.write


TABLES: Mapping[str, TableSpec[Any]] = {**CHECKED_TABLES, **PARTITION_TABLES, **EOP_TABLES}
FIGURES: Mapping[str, FigureSpec[Any]] = {**PARTITION_FIGURES, **EOP_FIGURES}
