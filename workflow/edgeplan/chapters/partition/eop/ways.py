"""Ways to run a model that tables compare: both processors alone, EOP's baselines, its algorithms, and our planner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from edgeplan.chapters.partition.settings import ALL_CORES
from edgeplan.planning.partition.costs import CPU, GPU, Choice, PairCosts, equal, fixed, in_sequence, single
from edgeplan.planning.partition.eop import Eop, eop, fitted_costs
from edgeplan.planning.partition.planner import outcome
from edgeplan.workloads.registry import Workload
from edgeplan.workloads.sequences import bert, unrolled_language_model

#: Values by figure, setting and model. Figure 10 varies 12 to 192 "layers" of BERT, which change its time by under 1 %: these
#: can only be heads, which leave the width as it is. Heads and layers are varied apart, heads at two layers to save time.
VARIED: Mapping[tuple[str, str, str], tuple[int, ...]] = {
    **{("figure_09", "batch", cell): (8, 16, 32, 64, 128) for cell in ("LSTM", "GRU")},
    **{("figure_09", "input", cell): (40, 80, 120, 160, 200) for cell in ("LSTM", "GRU")},
    **{("figure_09", "layers", cell): (2, 4, 6, 8) for cell in ("LSTM", "GRU")},
    ("figure_10", "heads", "BERT"): (12, 48, 192),
    ("figure_10", "layers", "BERT"): (1, 2, 4),
}
#: The figure whose models are recurrent.
RECURRENT_FIGURE = "figure_09"
_BATCH, _VOCABULARY = 16, 32000
_SETTINGS = {"batch": "batch", "input": "embedding", "layers": "layers", "heads": "heads"}


def variant(model: str, setting: str, value: int) -> tuple[str, Callable[[], Workload]]:
    """Name and builder of a model with a setting of a value, all else as in the paper's table 3."""
    name = f"{model} {setting} {value}"
    sizes = {"batch": _BATCH, "layers": 2, _SETTINGS[setting]: value}
    if model == "BERT":
        return name, partial(bert, name, tokens=1, vocabulary=_VOCABULARY, **sizes)
    return name, partial(unrolled_language_model, name, "LSTM" if model == "LSTM" else "GRU", **sizes)


def recurrent_variants() -> Mapping[str, Callable[[], Workload]]:
    """Return the recurrent variants of figure 9 by name."""
    named = [(model, setting, values) for (figure, setting, model), values in VARIED.items() if figure == RECURRENT_FIGURE]
    return dict(variant(model, setting, value) for model, setting, values in named for value in values)


CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, DRAWN, OURS = (
    *("cpu", "gpu", "equal", "fixed", "EOP as written", "EOP as drawn", "ours"),
)
#: EOP as written on costs that our predictors give, in place of measured ones.
PREDICTED = "EOP, predicted costs"
#: Figure 11. Sections 5.1 and 5.5 contradict each other. Taken from 5.5: condition 1 leaves the other processor idle, so key
#: operators run whole where they are faster; condition 2 tunes the ratio of every operator, key or not; condition 3 is EOP.
CONDITION_1, CONDITION_2 = "condition 1: key operators alone", "condition 2: ratios of all operators"
WAYS = (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, DRAWN, CONDITION_1, CONDITION_2, OURS, PREDICTED, ALL_CORES)


@dataclass(frozen=True, slots=True)
class Way:
    """A plan with its prediction: what its planner says (of EOP AT, equation 4), and what a simulation takes.

    `ratios` are of the operators that EOP splits: over what, and the CPU's share in steps of .01; options are the nearest that
    were measured. `gap` is how far our plan may be from the optimum.
    """

    choice: Choice
    splits: int
    predicted_ms: float
    simulated_ms: float
    seconds: float = 0.0
    gap: float = float("nan")
    ratios: Mapping[int, tuple[str, float]] = field(default_factory=lambda: MappingProxyType({}))


def measured_ways(costs: PairCosts) -> tuple[Mapping[str, Way], Eop]:
    """Return all of `WAYS` that follow from measured costs, and what EOP's algorithms found."""
    found: dict[str, Way] = {}
    simple = {
        CPU_WAY: single(costs, CPU),
        GPU_WAY: single(costs, GPU),
        EQUAL: equal(costs),
        FIXED: fixed(costs),
        CONDITION_1: tuple(s.options.index(s.best_whole) for s in costs.steps),
    }
    for name, choice in simple.items():
        taken = in_sequence(costs, choice).makespan_ms
        found[name] = Way(choice, costs.splits(choice), taken, taken)
    tuned: dict[str, Eop] = {}
    for name, overlapped, every in ((EOP, False, False), (DRAWN, True, False), (CONDITION_2, False, True)):
        found[name], tuned[name] = _by_eop(costs, overlapped=overlapped, every=every)
    smooth = fitted_costs(costs)
    began = time.perf_counter()
    planned = outcome(smooth)
    seconds, makespan = time.perf_counter() - began, planned.timeline.makespan_ms
    gap = makespan / planned.lower_bound_ms - 1 if planned.lower_bound_ms > 0 else 0.0
    options = planned.costs.chosen(planned.choice)
    choice = tuple(s.options.index(o) for s, o in zip(smooth.steps, options, strict=True))
    found[OURS] = Way(choice, costs.splits(choice), makespan, makespan, seconds, gap)
    return {name: found[name] for name in WAYS if name in found}, tuned[EOP]


def as_predicted(costs: PairCosts) -> Way:
    """Return the way `PREDICTED` from predicted costs."""
    return _by_eop(costs)[0]


def _by_eop(costs: PairCosts, **how: bool) -> tuple[Way, Eop]:
    began = time.perf_counter()
    made = eop(costs, **how)
    simulated_ms = in_sequence(costs, made.choice).makespan_ms
    seconds = time.perf_counter() - began
    tuned = {
        k: (matched.dimension, ratio)
        for k, ratio, matched in zip(made.key, made.ratios, made.matched, strict=True)
        if 0 < ratio < 1
    }
    splits = costs.splits(made.choice)
    return Way(made.choice, splits, made.estimate_ms, simulated_ms, seconds, ratios=MappingProxyType(tuned)), made
