"""Runs any planner of a cold start: each home layout is planned, the best plan is kept.

Kernels for later runs are those that are fastest once they have run, whatever preparation takes (NNV12, section 3.5).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from edgeplan.chapters.cold_start.planners.nnv12 import nnv12
from edgeplan.errors import FormatError, ParamsError
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.machine import cost_arrays, makespan_ms, sequential
from edgeplan.planning.optimal import Outcome, Search, optimal, optimal_outcome, plan_document
from edgeplan.planning.profile import (
    BIG,
    RAW,
    UNCACHED,
    Candidate,
    Disk,
    Layer,
    Profile,
    check,
    kernel_name,
    narrowed,
    pareto,
    prepare_ms,
)


@dataclass(frozen=True, slots=True)
class Options:
    """Options set what planners search, measure and try.

    Attributes:
        search: of the optimal planner, and of the bound that every plan carries.
        beat_ms: the best makespan of another layout; only faster plans are of interest.
        disk: where the weights are when the page cache is evicted, for the planner of that name.
    """

    search: Search = field(default_factory=Search)
    beat_ms: float = math.inf
    disk: Disk | None = None


Planner = Callable[[Profile, Options], Outcome]


def _optimal(profile: Profile, options: Options) -> Outcome:
    return optimal_outcome(profile, options.search, beat_ms=options.beat_ms)


def _evicted(profile: Profile, options: Options) -> Outcome:
    if options.disk is None:
        raise ParamsError("the planner for an evicted page cache needs the disk's bandwidth", next_step="give Options.disk")
    return optimal_outcome(profile, options.search, beat_ms=options.beat_ms, disk=options.disk)


def _from_one_file(profile: Profile) -> Profile:
    """Return undominated candidates, without raw weights for kernels that can have them from the cache.

    Cached weights lie one behind the other in the order of execution. Raw ones between them save a few bytes of padding in the
    model of the disk, and on a disk break both sequences: reading ahead brings what nobody wants (27 MB instead of 17 for
    MobileNet) and begins anew behind every gap.
    """
    kept = []
    for layer in profile.layers:
        cached = {c.implementation for c in layer.candidates if c.source != RAW}
        kept.append([i for i, c in enumerate(layer.candidates) if c.source != RAW or c.implementation not in cached])
    return pareto(narrowed(profile, kept), disk=True)


def _in_sequence(profile: Profile, choice: tuple[int, ...] | None = None) -> Outcome:
    """Plan one step after the other, with the candidates that take the least in sum if no others are given."""
    costs = cost_arrays(profile)
    if choice is None:
        choice = tuple((costs.alone_prepare + costs.alone_execute).argmin(axis=1).tolist())
    schedule = sequential(costs, choice)
    return Outcome(profile, schedule, profile.start_ms + makespan_ms(costs, schedule), "in sequence")


def _uncached(profile: Profile) -> Profile:
    """Return candidates whose weights are made from the model's, and those of steps whose weights are always cached."""
    kept = []
    for layer in profile.layers:
        uncached = [i for i, c in enumerate(layer.candidates) if c.source in UNCACHED]
        kept.append(uncached or list(range(len(layer.candidates))))
    return narrowed(profile, kept)


def _warm(profile: Profile, _: Options) -> Outcome:
    # A stock engine: the kernel that is fastest when warm. What its first execution takes counts in the makespan only.
    profile = _uncached(profile)
    return _in_sequence(profile, fastest_warm(profile))


#: The planner that needs `Options.disk`.
EVICTED = "evicted"
# Figure 13's ablation: K chooses kernels, C caches transformed weights, P pipelines.
PLANNERS: dict[str, Planner] = {
    "optimal": _optimal,
    EVICTED: _evicted,
    "nnv12": lambda profile, _: nnv12(pareto(profile)),
    "warm": _warm,
    "K": lambda profile, _: _in_sequence(_uncached(profile)),
    "K+C": lambda profile, _: _in_sequence(profile),
    "K+C+P": _optimal,
}


def outcomes(profiles: Iterable[Profile], planner: str, options: Options | None = None) -> dict[str, Outcome]:
    """Plan a model under every home layout."""
    profiles, options = tuple(profiles), options or Options()
    until = time.monotonic() + options.search.time_limit_s
    planned: dict[str, Outcome] = {}
    # Filtered once for a search and the glance before it.
    checked = [check(p) for p in profiles]
    filtered = [_SEARCHING[planner](p) for p in checked] if planner in _SEARCHING else checked
    waiting = _promising_first(filtered, planner, options)
    while waiting:
        p = waiting.pop(0)
        beat_ms = min((o.makespan_ms for o in planned.values()), default=math.inf)
        left_s = max(until - time.monotonic(), 0.0)
        # Beside a faster layout most are given up at once: the most promising one may take most of what is left.
        search = replace(options.search, time_limit_s=left_s * _FIRST_SHARE if waiting else left_s)
        planned[p.layout] = PLANNERS[planner](p, replace(options, search=search, beat_ms=beat_ms))
    return {p.layout: planned[p.layout] for p in profiles}


#: Planners that search until a gap is proven or their time is over, with the candidates that they search among.
_SEARCHING: dict[str, Callable[[Profile], Profile]] = {"optimal": pareto, EVICTED: _from_one_file, "K+C+P": pareto}
_FIRST_SHARE = 0.8


def _promising_first(profiles: list[Profile], planner: str, options: Options) -> list[Profile]:
    """Sort layouts by what a search without any time finds."""
    if planner not in _SEARCHING or len(profiles) < 2:
        return profiles
    glance = replace(options, search=replace(options.search, time_limit_s=0.0))
    return sorted(profiles, key=lambda p: PLANNERS[planner](p, glance).makespan_ms)


def plan_start(
    profiles: Iterable[Profile],
    planner: str,
    target: Target,
    *,
    costs: Literal["profiled", "predicted"] = "profiled",
    options: Options | None = None,
) -> Plan:
    """Plan a cold start from profiles of one model, one for each home layout: the best is kept.

    Returns:
        The plan, with its makespan and the bound that no schedule of any of these layouts beats.
    """
    options = options or Options()
    profiles = tuple(profiles)
    started = time.monotonic()
    planned = outcomes(profiles, planner, options)
    best = min(planned.values(), key=lambda o: o.makespan_ms)
    planning_ms = (time.monotonic() - started) * 1e3
    bounds = [o.lower_bound_ms for o in planned.values()]
    proven = [b for b in bounds if b is not None]
    if len(proven) < len(bounds):  # a heuristic proves nothing
        proven = [lower_bound_ms(profiles, options.search)]
    bound_ms = min(proven)
    return plan_document(best, planner, target, costs=costs, bound_ms=bound_ms, planning_ms=planning_ms)


def lower_bound_ms(profiles: Iterable[Profile], search: Search | None = None) -> float:
    """Return the bound that no schedule of any of the profiles beats, proven by the optimal planner."""
    best_ms = bound_ms = math.inf
    for p in profiles:
        planned = optimal(cost_arrays(pareto(p)), search, beat_ms=best_ms - p.start_ms)
        best_ms = min(best_ms, p.start_ms + planned.makespan_ms)
        bound_ms = min(bound_ms, p.start_ms + planned.lower_bound_ms)
    return bound_ms


def fastest_warm(profile: Profile) -> tuple[int, ...]:
    """Return for each step the position of the candidate that executes fastest on all big cores once it has run.

    Warm times decide: the first execution in a process touches memory for the first time, and some kernels do in it what
    they never do again. Of equally fast ones the one that is prepared soonest is taken.
    """

    def fastest(candidates: Sequence[Candidate]) -> int:
        costs = [(c.warm(profile.big_cores), sum(prepare_ms(profile, c, BIG, overlapped=False))) for c in candidates]
        return costs.index(min(costs))

    return tuple(fastest(layer.candidates) for layer in profile.layers)


def profile_for(made: Plan, profiles: Sequence[Profile]) -> Profile:
    """Return the profile of the plan's home layout."""
    for profile in profiles:
        if profile.layout == made.layout and len(profile.layers) == len(made.steps):
            return profile
    raise FormatError(f"no profile of layout {made.layout}", where=f"plan of {made.model}", next_step="profile the model again")


#: Later inferences within which a kernel must repay what it takes to prepare beside the one of the cold start.
REPAID_WITHIN = 20


def repaid(made: Plan, profile: Profile) -> tuple[int, ...]:
    """Return for each step the position of the candidate that takes the least over `REPAID_WITHIN` later inferences.

    The paper's K_warm asks for warm times alone. But what differs by the noise of a profile only is not worth reading and
    transforming weights for, of which large layers have a hundred megabytes: second inferences of AlexNet took five times as
    long as those without other kernels, and later ones no less. The kernel of the cold start has its weights, and is made anew
    if it executes on fewer cores in that one. And what a kernel takes more in its first execution (oneDNN's `gemm:jit`
    generates code then, for longer than ShuffleNetV2's cold start) all steps that it is new for must repay together.
    """

    def total(k: int, position: int) -> float:
        candidate = profile.layers[k].candidates[position]
        read, create, transform = prepare_ms(profile, candidate, BIG, overlapped=False)
        if candidate.implementation != made.cold[k]:
            preparing = read + create + transform
        else:
            preparing = create if made.equal_cores and k < made.widen_from else 0.0
        return REPAID_WITHIN * candidate.warm(profile.big_cores) + preparing / profile.cores

    def kept(k: int) -> int:
        return [c.implementation for c in profile.layers[k].candidates].index(made.cold[k])

    steps = range(len(profile.layers))
    paid = set(map(kernel_name, made.cold))
    refused: set[str] = set()
    while True:
        chosen = tuple(min(_allowed(profile.layers[k], kept(k), refused), key=partial(total, k)) for k in steps)
        gains, once = defaultdict[str, float](float), defaultdict[str, float](float)
        for k, o in enumerate(chosen):
            candidate = profile.layers[k].candidates[o]
            if (kernel := kernel_name(candidate.implementation)) not in paid:
                gains[kernel] += total(k, kept(k)) - total(k, o)
                first = candidate.execute_ms[profile.big_cores] - candidate.warm(profile.big_cores)
                once[kernel] = max(once[kernel], first)
        if not (unpaid := {kernel for kernel, gain in gains.items() if gain <= once[kernel]}):
            return chosen
        refused |= unpaid


def _allowed(layer: Layer, kept: int, refused: Collection[str]) -> list[int]:
    """Return the cold start's candidate, and those whose weights are made from the model's, as those of later runs are."""
    others = enumerate(layer.candidates)
    return [kept, *(o for o, c in others if c.source in UNCACHED and kernel_name(c.implementation) not in refused)]


def with_warm_kernels(made: Plan, profiles: Sequence[Profile]) -> Plan:
    """Return the plan with the kernels for later runs (K_warm, as `repaid` has it), from the profiles that it was made from."""
    profile = profile_for(made, profiles)
    chosen = zip(profile.layers, repaid(made, profile), strict=True)
    return made.with_later([layer.candidates[o].implementation for layer, o in chosen])
