"""Sentences of captions and findings that follow from the measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pandas as pd

from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import (
    ABLATION,
    CACHED,
    EVICTED,
    EVICTED_PLAN,
    FIXED,
    OPTIMAL,
    OWN,
    ColdEvidence,
)
from edgeplan.chapters.cold_start.evaluation.tables_bounds import bounds_evicted, evicted_gains
from edgeplan.chapters.cold_start.evaluation.tables_continuous import inference, mode_over_without
from edgeplan.chapters.cold_start.evaluation.tables_runs import figure_11, figure_13
from edgeplan.chapters.cold_start.evaluation.tables_stages import (
    STAGES,
    figure_06,
    focus,
    maybe_stages,
    title,
)
from edgeplan.measurement.process.interference import LIMIT
from edgeplan.reporting.kit import NotMeasuredError
from edgeplan.reporting.table import cell_text

_CELL = ["model", "setting", "plan", "threads", "state"]


def listed(names: Iterable[object]) -> str:
    """Names as a sentence has them: a, b and c."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def beside(e: ColdEvidence) -> str:
    """Our starts against the best stock setting of each model, and what failed of them."""
    told = []
    for state in (CACHED, EVICTED):
        stock, own = metrics.stock_cold(e.runs, state)["cold_ms"], metrics.own_cold(e.runs, state)["cold_ms"]
        ratios = (stock / own).dropna()
        if len(ratios):
            mean, slower = metrics.over_models(ratios), ratios[ratios < 1].index
            text = f"{mean.value:.2f} (95 %: {mean.low:.2f} to {mean.high:.2f}) with the page cache {_CALLED[state]}"
            told.append(
                f"{text}, {f'slower on {listed(slower)}' if len(slower) else f'slower on none of {len(ratios)} models'}"
            )
    if not told:
        return ""
    mine = e.runs[e.runs["setting"].str.startswith(OWN)]
    lost = f" {len(metrics.failed(mine))} of {len(mine)} starts of our plans failed."
    return f"Speed-up over the stock setting that is best for a model: {'; '.join(told)}.{lost}"


_CALLED = {CACHED: "warm", EVICTED: "evicted"}


def counts(e: ColdEvidence) -> str:
    """On how many runs the medians rest, and why others do not count."""
    runs = e.runs[(e.runs["load_core"] == "") & (e.runs["repeat"] >= 0)]
    if runs.empty:
        return ""
    counted = (runs["reason"] == "").groupby([runs[name] for name in _CELL]).sum()
    cells = counted.value_counts().sort_index(ascending=False)
    (most, first), *others = cells.items()
    text = (
        f"{len(counted)} cells (model, setting, plan, threads, page cache) were measured without load: {first} rest on {most} "
    )
    text += ", ".join(["counted runs", *(f"{number} on {n}" for n, number in others)])
    left_out = runs[runs["reason"] != ""]
    if len(left_out):
        reclaimed = left_out["reason"].str.contains(metrics.RECLAIMED, regex=False) & (left_out["state"] == CACHED)
        text += f". {len(left_out)} of {len(runs)} runs do not count, {reclaimed.sum()} of them since the kernel had reclaimed "
        text += "pages of their files"
    return f"{text}. `runs` in a table is that number, the least where a row merges several medians."


def disturbed(e: ColdEvidence) -> str:
    """Count the runs that count and did not have their processors to themselves."""
    runs = e.runs[(e.runs["load_core"] == "") & (e.runs["reason"] == "") & (e.runs["repeat"] >= 0)]
    if runs.empty:
        return ""
    found = runs["interference"] > LIMIT
    by_threads = found.groupby(runs["threads"]).mean()
    shares = listed(f"{100 * share:.1f} % on {n} thread{'s' if n != 1 else ''}" for n, share in by_threads.items())
    return (
        f"Of the runs that count, {found.sum()} of {len(runs)} ({shares}) were disturbed in every attempt: beside them a load "
        f"on all their processors at once took more than {LIMIT:g} times its usual time. They are the least disturbed."
    )


def sequences(*plans: str) -> Callable[[ColdEvidence], str]:
    """Tell which plans that are sequences were executed as such: with the second lane idle, as planned."""

    def told(e: ColdEvidence) -> str:
        found = metrics.own(metrics.medians(e.runs))
        ran = set(found.loc[found["threads"] > 1, "plan"])
        named = listed(f"`{plan}`" for plan in plans if plan in ran) if ran.intersection(plans) else ""
        return f"{named} ran without work stealing (setting `{FIXED}`): the sequence is what was executed." if named else ""

    return told


def ablation(e: ColdEvidence) -> str:
    """Where a technique made starts slower, and how its plans were executed."""
    frame = figure_13(e)
    frame = frame[frame["page_cache"].isin((CACHED, EVICTED)) & frame["runs"].notna()]
    text = []
    for state, part in frame.groupby("page_cache", sort=False):
        steps = ((a, b, part.dropna(subset=[f"{a}_ms", f"{b}_ms"])) for a, b in (("warm", "K"), ("K", "K+C"), ("K+C", "K+C+P")))
        worse = [
            f"{b} than {a} on {n} of {len(both)}" for a, b, both in steps if (n := (both[f"{b}_ms"] > both[f"{a}_ms"]).sum())
        ]
        if worse:
            text.append(f"Page cache {state}: slower {', '.join(worse)}.")
    return f"{' '.join(text)} {sequences(*ABLATION)(e)}".strip()


def bounds(e: ColdEvidence) -> str:
    """Which of our plans are meant, and whether a start took less than its bound."""
    ratio = (metrics.own_cold(e.runs, EVICTED)["cold_ms"] / metrics.evicted_bound_ms(e)).dropna()
    below = ratio[ratio < 1]
    if below.empty:
        return own_optimal(e)
    rest = f", over the others {cell_text(metrics.geomean(ratio[ratio >= 1]))}" if len(below) < len(ratio) else ""
    return (
        f"{own_optimal(e)} {listed(below.index)} took less than the bound with the page cache evicted: the disk was faster in "
        f"its starts than in the probes. The geometric mean over all models is {cell_text(metrics.geomean(ratio))}{rest}."
    ).strip()


def bounds_of_disk(e: ColdEvidence) -> str:
    """Count the models that the disk bounds, and those on which its plan starts slower than the one for memory."""
    frame, compared = bounds_evicted(e), evicted_gains(e)
    by_disk = (frame["bounded_by"] == "disk").sum()
    text = f"{by_disk} of {len(frame)} models are bounded by the disk."
    for threads, part in compared.dropna(subset=["gain"]).groupby("threads"):
        slower, gain = part.loc[part["gain"] < 1, "model"], cell_text(metrics.geomean(part["gain"]))
        named = f" ({listed(slower)})" if len(slower) else ""
        text += (
            f" On {threads} thread{'s' if threads != 1 else ''} `{EVICTED_PLAN}` starts slower than `{OPTIMAL}` in this state "
            f"on {len(slower)} of {len(part)} models{named}; {OPTIMAL} / {EVICTED_PLAN} is {gain} in the geometric mean."
        )
    return text


def warm_plans(e: ColdEvidence) -> str:
    """Name the plans that our warm figures are of."""
    found = metrics.cold_metrics(e)
    ratios = [found.get(f"runtime.warm_vs_best_stock{plan}") for plan in ("", "_optimal")]
    if None in ratios:
        return ""
    best, default = (cell_text(float(ratio)) for ratio in ratios if ratio is not None)
    return (
        f"Warm, our plan `{metrics.WARM_PLAN}` takes {best} times as long as the best stock engine of each model (geometric "
        f"mean). The plan `{OPTIMAL}`, for cold starts, which is what a user gets unasked, takes {default} times as long."
    )


def evicted_plans(e: ColdEvidence) -> str:
    """Plans for weights in memory and for an evicted page cache apart: the bar of the gap takes both."""
    found = metrics.cold_metrics(e)
    keys = ("plan_gap_max", "plan_seconds_max")
    values = [found.get(f"cold.{key}{state}") for key in keys for state in ("_cached", "_evicted")]
    shares = [found.get(f"cold.predicted_within_15pct{states}") for states in ("_both_states", "")]
    if None in (*values, *shares):
        return ""
    gap, streamed_gap, seconds, streamed_seconds, both, cached = (float(v) for v in (*values, *shares) if v is not None)
    streamed = e.plans[e.plans["planner"] == EVICTED_PLAN]
    gaps = streamed["makespan_ms"] / streamed["lower_bound_ms"] - 1
    return (
        f"Plans from profiled costs for weights in memory are within {100 * gap:.2f} % of their proven bounds and made in "
        f"{seconds:.2f} s at most, those for an evicted page cache within {100 * streamed_gap:.1f} % and in "
        f"{streamed_seconds:.1f} s: {(gaps > metrics.GAP_BAR).sum()} of these {len(gaps)} miss the bar of "
        f"{100 * metrics.GAP_BAR:g} %. Counted with them, {100 * both:.1f} % of the makespans are within 15 %, not "
        f"{100 * cached:.1f} %. The disk they are made for is probed once, before planning."
    )


def stages_of_lanes(e: ColdEvidence) -> str:
    """Add up the stages of Table 1."""
    told = sequences("warm")(e)
    stages = maybe_stages(e, focus(e, "resnet50"), OWN, "warm", CACHED)
    if stages:
        added = sum(stages.get(name, 0.0) for name in STAGES)
        told += (
            " Stages are core-time, summed over the lanes (execution on several cores counts once): with the page cache warm "
            f"those of `warm plan` ({', '.join(STAGES)}) add up to {cell_text(added)} ms, its start took "
            f"{cell_text(stages['total cold'])} ms."
        )
    return told


def own_optimal(e: ColdEvidence) -> str:
    """Which of our plans stand beside the stock engines."""
    found = metrics.own(metrics.medians(e.runs))
    settings = sorted(set(found.loc[found["plan"] == OPTIMAL, "setting"]))
    if settings != [OWN]:
        return ""
    if metrics.plan_for(e.runs, EVICTED) == OPTIMAL:
        text = f"Ours is the plan `{OPTIMAL}`, run with work stealing (setting `{OWN}`)."
        return f"{text} There is no plan for an evicted page cache: {e.notes['disk']}." if "disk" in e.notes else text
    return (
        f"Ours is the plan made for the state: `{OPTIMAL}` with the page cache warm, `{EVICTED_PLAN}` with an evicted one, "
        f"run with work stealing (setting `{OWN}`)."
    )


def widths(e: ColdEvidence) -> str:
    """On how many cores the plans of Figure 6 were measured."""
    counts_of = figure_06(e).groupby("plan", sort=False)["cores"].agg(list)
    parts = [f"`{plan}` on {listed(cores)} core{'s' if cores[-1] > 1 else ''}" for plan, cores in counts_of.items()]
    single = [f"`{plan}`" for plan, cores in counts_of.items() if len(cores) == 1]
    text = f"Planned and measured: {'; '.join(parts)}."
    if single:
        text += f" {listed(single)} is there for one number of cores only, so it tells nothing of how stages scale with cores."
    return f"{text} {sequences('warm')(e)}".rstrip()


def continuous(e: ColdEvidence) -> str:
    """Tell what the mode for continuous inference gains or costs, one inference after another."""
    try:
        ratios = mode_over_without(e)
    except NotMeasuredError:
        return ""
    number = sum(name != "sum_ms" for name in ratios.columns)
    pays = metrics.geomean(ratios["sum_ms"]) < 1
    parts = [f"all {number} together {_times(ratios['sum_ms'])}"]
    parts += [f"inference {i} {_times(ratios[inference(i)])}" for i in range(1, min(number, 2) + 1)]
    if number > 2:  # beyond the two that the paper tells of
        later = ratios[[inference(i) for i in range(3, number + 1)]].prod(axis=1) ** (1 / (number - 2))
        parts.append(f"each later one {_times(later)}")
    return (
        f"The mode for continuous inference {'pays' if pays else 'costs more than it gains'} when {number} inferences follow "
        f"each other at once. Its times over those of the same plan without it (geometric means): {', '.join(parts)}."
    )


def _times(ratios: pd.Series[float]) -> str:
    """Ratios of times in words."""
    slower, known = int((ratios > 1).sum()), int(ratios.notna().sum())
    return f"{cell_text(metrics.geomean(ratios))} (slower on {slower} of {known} models)"


def stealing(e: ColdEvidence) -> str:
    """Tell what work stealing gains under load, and on how many runs that rests."""
    frame = figure_11(e)
    wide = frame.pivot_table(index=["load_core", "load_percent"], columns="setting", values="slow_down")
    names = [title(name) for name in (OWN, FIXED)]
    if not set(names) <= set(wide.columns):
        return load_runs(e)
    with_it, without = (wide.drop(index="", level="load_core")[name].dropna() for name in names)
    parts = [
        f"{percent} % on the {core} {cell_text(float(with_it[core, percent]))} and {cell_text(float(without[core, percent]))}"
        for core, percent in with_it.index
        if (core, percent) in without.index
    ]
    return f"Slow-downs with and without stealing: {'; '.join(parts)}. {load_runs(e)}"


def load_runs(e: ColdEvidence) -> str:
    """On how many runs Figure 11 rests."""
    frame = figure_11(e)
    idle = frame["load_percent"] == 0
    told = [
        f"{part.min()} to {part.max()} {where}"
        for part, where in ((frame.loc[idle, "runs"], "without load"), (frame.loc[~idle, "runs"], "under each load"))
        if len(part)
    ]
    return f"Runs of a setting: {', '.join(told)}."
