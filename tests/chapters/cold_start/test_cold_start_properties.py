"""Properties of cold-start plans: valid on the machine, bounded from below, optimal where every schedule can be tried."""

import itertools
import math
from itertools import product

import numpy as np
import pytest
from cold_start_reference import optimum_ms, profiles
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.chapters.cold_start.planners.nnv12 import balanced
from edgeplan.chapters.cold_start.planners.registry import PLANNERS, Options, outcomes, plan
from edgeplan.planning.bounds import work_bound_ms
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.dominance import pareto
from edgeplan.planning.local_search import carried_bounds, cheap_bounds
from edgeplan.planning.machine import MAIN, KernelSchedule, Span, costs_of, makespan_ms, makespans_ms, simulate
from edgeplan.planning.optimal import Search, optimal
from edgeplan.planning.profile import Disk, Profile, check
from edgeplan.profiling.frame import from_frame, to_frame

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
    proven = optimal(costs_of(pareto(profile)))
    assert proven.lower_bound_ms <= makespan + _ROUNDING
    assert work_bound_ms(profile) <= proven.lower_bound_ms + _ROUNDING


@settings(_quick, max_examples=examples(150))
@given(data=st.data())
def test_closed_form_is_the_simulated_makespan(data: st.DataObject) -> None:
    profile = data.draw(profiles(steps=7, candidates=3))
    n = len(profile.layers)
    choice = tuple(data.draw(st.integers(0, len(layer.candidates) - 1)) for layer in profile.layers)
    place = tuple(data.draw(st.integers(MAIN, profile.queues - 1)) for _ in range(n))
    schedule = KernelSchedule(choice, place, data.draw(st.integers(0, n)) if profile.equal else n)
    makespan, spans = simulate(profile, schedule)
    assert_valid(profile, schedule, spans)
    assert math.isclose(makespan, makespan_ms(costs_of(profile), schedule), abs_tol=1e-9)


@settings(_quick, max_examples=examples(25))
@given(profile=profiles(steps=3, candidates=2))
def test_bound_and_plan_enclose_the_optimum(profile: Profile) -> None:
    gap = 1e-3
    best = optimum_ms(profile)
    planned = optimal(costs_of(pareto(profile)), Search(gap=gap))
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
    costs, n = costs_of(profile), len(profile.layers)
    assume(costs.queues == 1)
    weights = np.array(data.draw(st.lists(st.integers(0, 4), min_size=n + 2, max_size=n + 2)), dtype=float)
    assume(weights.sum() > 0)
    weights /= weights.sum()
    choices = list(product(*(range(len(layer.candidates)) for layer in profile.layers)))
    places = [place for place in product((MAIN, 0), repeat=n) if set(place) != {MAIN}]
    # With everything on the main core the first widening is without contention, and bounded apart.
    makespans = np.min([makespans_ms(costs, np.array(c), np.array(p)) for c in choices for p in places], axis=0)
    alone = np.min([makespans_ms(costs, np.array(c), np.full(n, MAIN)) for c in choices], axis=0)
    makespans[1:] = np.minimum(makespans, alone)[1:]
    assert costs.wide is not None
    for bounds in (carried_bounds(costs, costs.wide, float(weights[0]), weights[1 : n + 1]), cheap_bounds(costs)[0]):
        assert (bounds <= makespans + _ROUNDING).all()


@settings(_quick, max_examples=examples(40))
@given(profile=profiles(steps=3, candidates=4))
def test_the_filter_never_removes_the_optimum(profile: Profile) -> None:
    search = Search(gap=1e-6)
    full, filtered = optimal(costs_of(profile), search), optimal(costs_of(pareto(profile)), search)
    assert filtered.lower_bound_ms <= full.makespan_ms + _ROUNDING
    if profile.queues == 1:
        assert math.isclose(full.makespan_ms, filtered.makespan_ms, rel_tol=1e-5, abs_tol=1e-5)
    for layer, kept in zip(profile.layers, pareto(profile).layers, strict=True):
        assert 1 <= len(kept.candidates) <= len(layer.candidates)


@settings(_quick, max_examples=examples(60))
@given(profile=profiles(steps=9, candidates=3, equal=False))
def test_algorithm_1_places_every_preparation_once(profile: Profile) -> None:
    costs = costs_of(profile)
    place = balanced(costs, (0,) * costs.steps, 0.05)
    assert len(place) == costs.steps
    assert place[0] == MAIN  # line 3
    assert set(place) <= {MAIN, *range(profile.queues)}


@settings(_quick, max_examples=examples(40))
@given(profile=profiles(steps=5, candidates=3), planner=st.sampled_from(sorted(PLANNERS)))
def test_documents_survive_writing_and_reading(profile: Profile, planner: str) -> None:
    written = plan([profile], planner, _TARGET, options=Options(_SEARCH, disk=Disk(1e-5, 0.5)))
    assert Plan.model_validate_json(written.model_dump_json()) == written
    assert {written.step(k).name for k in range(len(profile.layers))} == {layer.name for layer in profile.layers}
    (again,) = from_frame(to_frame([check(profile)]))
    assert again == profile
