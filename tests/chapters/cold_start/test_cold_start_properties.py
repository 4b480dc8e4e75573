"""Properties of cold-start plans: valid on the machine, bounded from below, optimal where every schedule can be tried.

That is independent of the planners' formulas. Weights are in memory, or come from the disk.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.chapters.cold_start.planners.nnv12 import balanced
from edgeplan.chapters.cold_start.planners.registry import PLANNERS, Options, outcomes, plan_start
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.local_search import Events, cheap_bounds
from edgeplan.planning.machine import MAIN, KernelSchedule, Span, cost_arrays, makespan_ms, makespans_ms, simulate
from edgeplan.planning.mixed_integer import carried_bounds, program, relax, solve
from edgeplan.planning.optimal import Search, optimal
from edgeplan.planning.profile import Candidate, Contention, Disk, Fresh, Layer, Profile, check, pareto, work_bound_ms
from edgeplan.profiling.frame import from_frame, to_frame

# Times are whole quarters, so that sums are exact and ties happen.
_times = st.integers(0, 40).map(lambda n: n / 4)
_factors = st.sampled_from([1.0, 1.25, 1.5])
_fresh_factors = st.sampled_from([0.5, 1.0, 1.25, 1.5])  # a fresh process may be faster at a stage too


@st.composite
def profiles(draw: st.DrawFn, steps: int = 3, candidates: int = 2, equal: bool | None = None) -> Profile:
    equal = draw(st.booleans()) if equal is None else equal
    big = draw(st.integers(2, 3)) if equal else draw(st.integers(1, 2))
    widths = sorted({1, big})

    def candidate(i: int) -> Candidate:
        times = [{"big": draw(_times)} | ({"little": draw(_times)} if draw(st.booleans()) else {}) for _ in range(3)]
        executions = {w: draw(_times) for w in widths}
        source = "raw" if i % 2 == 0 else draw(st.sampled_from(["cached_read", "cached_mmap"]))
        return Candidate(f"k{i}", source, *times, executions, 4 * i, 3 * i, 2 * i)

    layers = tuple(
        Layer(f"s{k}", (f"n{k}",), tuple(candidate(i) for i in range(draw(st.integers(1, candidates)))))
        for k in range(draw(st.integers(1, steps)))
    )
    contention = Contention(*(draw(_factors) for _ in range(7)))
    fresh = Fresh(*(draw(_fresh_factors) for _ in range(6)), hand_over_ms=draw(_times))
    little = 0 if equal else draw(st.integers(1, 2))
    ratio = 1.0 if equal else draw(st.sampled_from([1.0, 2.0]))
    return Profile("m", "nhwc", big, little, ratio, layers, contention, fresh=fresh)


def optimum_ms(profile: Profile) -> float:
    """The least makespan over all choices, places, widenings, orders on every queue and interleavings on the main core."""
    n = len(profile.layers)
    widenings = range(n + 1) if profile.equal else (n,)
    queues = profile.big_cores - 1 if profile.equal else profile.little_cores
    choices = product(*(layer.candidates for layer in profile.layers))
    return min(
        _finish(profile, choice, w, orders, main)
        for choice in choices
        for place in product(range(-1, queues), repeat=n)
        for orders in product(*(permutations([k for k in range(n) if place[k] == q]) for q in range(queues)))
        for w in widenings
        for main in _interleavings([k for k in range(n) if place[k] == -1], 0, n, w)
    )


def _interleavings(own: list[int], execute: int, n: int, w: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every order of the main core's preparations and executions in which each execution may come when it does."""
    if execute == n and not own:
        yield ()
    for k in own:
        for rest in _interleavings([other for other in own if other != k], execute, n, w):
            yield (("prepare", k), *rest)
    if execute < n and execute not in own and not (own and execute >= w):
        for rest in _interleavings(own, execute + 1, n, w):
            yield (("execute", execute), *rest)


def _finish(
    profile: Profile,
    choice: tuple[Candidate, ...],
    w: int,
    orders: tuple[tuple[int, ...], ...],
    main: tuple[tuple[str, int], ...],
) -> float:
    n = len(choice)
    alone = not any(orders) and w == (0 if profile.equal else n)
    c, f = Contention() if alone else profile.contention, profile.fresh
    handed_ms = 0.0 if alone else f.hand_over_ms

    def prepare(k: int, little: bool, on_main: bool) -> float:
        read, create, transform = (
            t["little"] if little and "little" in t else t["big"]
            for t in (choice[k].read_ms, choice[k].create_ms, choice[k].transform_ms)
        )
        read *= f.map if choice[k].source == "cached_mmap" else f.read
        create, transform = create * f.create, transform * f.transform
        raw = choice[k].source == "raw"
        if on_main:
            return (read + create + transform) * (c.raw_main if raw else c.main)
        reading, making = (c.raw_read, c.raw_prepare) if raw else (c.read, c.prepare)
        return (read * reading + (create + transform) * making) * (profile.little_ratio if little else 1.0)

    ready = dict.fromkeys(range(n), 0.0)
    ends = [0.0]
    for order in orders:
        now = 0.0
        for k in order:
            now = ready[k] = now + prepare(k, not profile.equal, on_main=False)
        ends.append(now)
    now = 0.0
    for what, k in main:
        if what == "prepare":
            now += prepare(k, little=False, on_main=True)
        elif profile.equal and k >= w:
            now = max(now, *ends) + choice[k].execute_ms[profile.big_cores] * f.wide
        else:
            width = 1 if profile.equal else profile.big_cores
            now = max(now, ready[k]) + choice[k].execute_ms[width] * f.execute * c.execute + handed_ms
    return now


_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_TARGET = Target("m", "0" * 64, "oneDNN", "3.2", "avx512_core", "machine", 2)
_ROUNDING = 1e-6
_SEARCH = Search(time_limit_s=0.2)  # what holds does not depend on how long is searched


def assert_valid(profile: Profile, schedule: KernelSchedule, spans: tuple[Span, ...]) -> None:
    """Dependencies and core exclusivity of a timeline."""
    by_core: dict[str, list[Span]] = {}
    for span in spans:
        by_core.setdefault(span.core, []).append(span)
    for timeline in by_core.values():
        timeline.sort(key=lambda s: (s.start_ms, s.end_ms))
        for one, other in itertools.pairwise(timeline):
            assert other.start_ms >= one.end_ms - 1e-9
    n = len(profile.layers)
    executions = {k: [s for s in spans if s.layer == k and s.stage == "execute"] for k in range(n)}
    for k, place in enumerate(schedule.place):
        preparation = [s for s in spans if s.layer == k and s.stage != "execute"]
        assert {s.core for s in preparation} <= {"main" if place == MAIN else f"prepare:{place}"}
        starts = {s.start_ms for s in executions[k]}
        assert len(starts) == 1
        start = starts.pop()
        assert all(s.end_ms <= start + 1e-9 for s in preparation)
        assert k == 0 or executions[k - 1][0].end_ms <= start + 1e-9
        assert len(executions[k]) == (1 + profile.queues if profile.equal and k >= schedule.widen_from else 1)
        if profile.equal and k >= schedule.widen_from:
            assert all(s.end_ms <= start + 1e-9 for s in spans if s.stage != "execute")


@pytest.mark.parametrize("planner", PLANNERS)
@settings(_quick, max_examples=examples(25))
@given(profile=profiles(steps=9, candidates=4))
def test_every_plan_respects_dependencies_and_cores(planner: str, profile: Profile) -> None:
    outcome = outcomes([profile], planner, Options(_SEARCH, disk=Disk(1e-5, 0.5)))["nhwc"]
    makespan, spans = simulate(outcome.profile, outcome.schedule, outcome.disk)
    assert_valid(outcome.profile, outcome.schedule, spans)
    assert math.isclose(makespan, outcome.makespan_ms, abs_tol=1e-9)
    assert math.isclose(makespan, max(s.end_ms for s in spans), abs_tol=1e-9)
    proven = optimal(cost_arrays(pareto(profile)))
    assert proven.lower_bound_ms <= makespan + _ROUNDING
    assert work_bound_ms(profile) <= proven.lower_bound_ms + _ROUNDING


@settings(_quick, max_examples=examples(25))
@given(profile=profiles(steps=3, candidates=2))
def test_bound_and_plan_enclose_the_optimum(profile: Profile) -> None:
    gap = 1e-3
    best = optimum_ms(profile)
    planned = optimal(cost_arrays(pareto(profile)), Search(gap=gap))
    assert planned.lower_bound_ms <= best + _ROUNDING
    assert best <= planned.makespan_ms + _ROUNDING
    if profile.queues == 1:
        assert planned.makespan_ms <= best * (1 + gap) + _ROUNDING
        assert planned.gap <= gap + _ROUNDING or planned.lower_bound_ms == 0
    for planner in PLANNERS:
        assert outcomes([profile], planner, Options(_SEARCH, disk=Disk(1e-5)))["nhwc"].makespan_ms >= best - _ROUNDING


@settings(_quick, max_examples=examples(200))
@given(data=st.data())
def test_bounds_carried_between_widenings_hold_for_every_schedule(data: st.DataObject) -> None:
    profile = data.draw(profiles(steps=3, candidates=2, equal=True))
    costs, n = cost_arrays(profile), len(profile.layers)
    assume(costs.queues == 1)
    full = program(costs, data.draw(st.sampled_from(costs.widenings())))
    choices = list(product(*(range(len(layer.candidates)) for layer in profile.layers)))
    places = [place for place in product((MAIN, 0), repeat=n) if set(place) != {MAIN}]
    # With everything on the main core the first widening is without contention, and bounded apart.
    makespans = np.min([makespans_ms(costs, np.array(c), np.array(p)) for c in choices for p in places], axis=0)
    alone = np.min([makespans_ms(costs, np.array(c), np.full(n, MAIN)) for c in choices], axis=0)
    makespans[1:] = np.minimum(makespans, alone)[1:]
    for bounds in (carried_bounds(costs, full, relax(full)), cheap_bounds(costs)[0]):
        assert (bounds <= makespans + _ROUNDING).all()


@settings(_quick, max_examples=examples(60))
@given(profile=profiles(steps=9, candidates=3, equal=False))
def test_algorithm_1_places_every_preparation_once(profile: Profile) -> None:
    costs = cost_arrays(profile)
    place = balanced(costs, (0,) * costs.steps)
    assert len(place) == costs.steps
    assert place[0] == MAIN  # line 3
    assert set(place) <= {MAIN, *range(profile.queues)}


@settings(_quick, max_examples=examples(40))
@given(profile=profiles(steps=5, candidates=3), planner=st.sampled_from(sorted(PLANNERS)))
def test_documents_survive_writing_and_reading(profile: Profile, planner: str) -> None:
    written = plan_start([profile], planner, _TARGET, options=Options(_SEARCH, disk=Disk(1e-5, 0.5)))
    assert Plan.model_validate_json(written.model_dump_json()) == written
    assert {written.step(k).name for k in range(len(profile.layers))} == {layer.name for layer in profile.layers}
    (again,) = from_frame(to_frame([check(profile)]))
    assert again == profile


# Bytes of the random profiles are single ones: at these bandwidths they take between nothing and most of the time.
disks = st.builds(Disk, st.sampled_from([1e-6, 4e-6, 1e-5, 1.0]), st.sampled_from([0.0, 0.5, 3.0]))


def _drawn(data: st.DataObject, profile: Profile) -> KernelSchedule:
    n = len(profile.layers)
    choice = tuple(data.draw(st.integers(0, len(layer.candidates) - 1)) for layer in profile.layers)
    place = tuple(data.draw(st.integers(MAIN, profile.queues - 1)) for _ in range(n))
    return KernelSchedule(choice, place, data.draw(st.integers(0, n)) if profile.equal else n)


@settings(_quick, max_examples=examples(200))
@given(data=st.data(), disk=st.none() | disks)
def test_schedules_are_priced_as_they_are_simulated(data: st.DataObject, disk: Disk | None) -> None:
    profile = data.draw(profiles(steps=7, candidates=3))
    schedule, costs = _drawn(data, profile), cost_arrays(profile, disk)
    makespan, spans = simulate(profile, schedule, disk)
    assert_valid(profile, schedule, spans)
    priced = Events(costs).makespan_ms(schedule) if disk else makespan_ms(costs, schedule)
    assert math.isclose(priced, makespan, abs_tol=1e-9)
    if disk is None:
        return
    arrival = disk.latency_ms
    for k, layer in enumerate(profile.layers):
        read = layer.candidates[schedule.choice[k]].read_bytes
        arrival += disk.transfer_ms(read)
        executed = min(span.start_ms for span in spans if span.layer == k and span.stage == "execute")
        assert read == 0 or executed >= arrival - _ROUNDING


@settings(_quick, max_examples=examples(100))
@given(data=st.data(), disk=disks)
def test_no_single_change_helps_after_the_descent(data: st.DataObject, disk: Disk) -> None:
    profile = data.draw(profiles(steps=5, candidates=3))
    schedule, costs = _drawn(data, profile), cost_arrays(profile, disk)
    events = Events(costs)
    found = events.descended(schedule, math.inf)
    least = events.makespan_ms(found)
    assert least <= events.makespan_ms(schedule)
    jumps = (-4, -2, -1, 1, 2, 4)
    changed = [replace(found, widen_from=found.widen_from + j) for j in jumps if found.widen_from + j in costs.widenings()]
    for k, layer in enumerate(profile.layers):
        for o, place in product(range(len(layer.candidates)), range(MAIN, profile.queues)):
            choice, places = list(found.choice), list(found.place)
            choice[k], places[k] = o, place
            changed.append(replace(found, choice=tuple(choice), place=tuple(places)))
    assert all(events.makespan_ms(other) >= least - _ROUNDING for other in changed)


@settings(_quick, max_examples=examples(100))
@given(data=st.data(), disk=disks)
def test_no_schedule_is_faster_than_the_bounds_of_its_widening_and_of_its_program(data: st.DataObject, disk: Disk) -> None:
    profile = data.draw(profiles(steps=5, candidates=2))
    schedule, costs = _drawn(data, profile), cost_arrays(profile, disk)
    widenings, makespan = costs.widenings(), Events(costs).makespan_ms(schedule)
    bounds, multipliers = cheap_bounds(costs)
    assert np.allclose(multipliers.sum(axis=1), 1.0)
    assert bounds[schedule.widen_from - widenings[0]] <= makespan + _ROUNDING
    solution = solve(program(costs, schedule.widen_from), gap=0.0, time_limit_s=10.0)
    assert solution.bound <= makespan + _ROUNDING
    full = program(costs, data.draw(st.sampled_from(widenings)))
    relaxed = relax(full)
    if costs.queues <= 1:  # its multipliers bound every widening, and give its own bound again
        carried = carried_bounds(costs, full, relaxed)
        assert carried[schedule.widen_from - widenings[0]] <= makespan + _ROUNDING
        assert math.isclose(carried[full.widen_from - widenings[0]], relaxed.bound, abs_tol=_ROUNDING)


@settings(_quick, max_examples=examples(40))
@given(profile=profiles(steps=3, candidates=2), disk=disks)
def test_plan_and_bound_enclose_the_optimum(profile: Profile, disk: Disk) -> None:
    n, costs = len(profile.layers), cost_arrays(profile, disk)
    events = Events(costs)
    choices = list(product(*(range(len(layer.candidates)) for layer in profile.layers)))
    places = list(product(range(MAIN, profile.queues), repeat=n))
    best = min(events.makespan_ms(KernelSchedule(c, p, w)) for c in choices for p in places for w in costs.widenings())
    for searched in (profile, pareto(profile, disk=True)):  # the filter loses no optimum
        found = optimal(cost_arrays(searched, disk), _SEARCH)
        assert found.lower_bound_ms <= best + _ROUNDING
        assert best <= found.makespan_ms + _ROUNDING
        assert found.makespan_ms <= best * 1.1 + _ROUNDING
