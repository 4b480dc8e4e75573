"""Properties of cold starts whose weights come from the disk: priced as simulated, bounded from below, and searched well."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
from cold_start_reference import profiles
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.chapters.cold_start.planners.streamed import streamed, streamed_bounds
from edgeplan.chapters.cold_start.planners.streamed_program import carried_bounds, streamed_program
from edgeplan.chapters.cold_start.planners.streams import descended, streamed_ms, streams_of
from edgeplan.planning.dominance import pareto
from edgeplan.planning.machine import MAIN, KernelSchedule, makespan_ms, simulate
from edgeplan.planning.mixed_integer import relax, solve
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile

_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_ROUNDING = 1e-6
_SEARCH = Search(time_limit_s=0.2)  # else it goes on for as long as a gap is left
# Bytes of the random profiles are single ones: at these bandwidths they take between nothing and most of the time.
disks = st.builds(Disk, st.sampled_from([1e-6, 4e-6, 1e-5, 1.0]), st.sampled_from([0.0, 0.5, 3.0]))


def _drawn(data: st.DataObject, profile: Profile) -> KernelSchedule:
    n = len(profile.layers)
    choice = tuple(data.draw(st.integers(0, len(layer.candidates) - 1)) for layer in profile.layers)
    place = tuple(data.draw(st.integers(MAIN, profile.queues - 1)) for _ in range(n))
    return KernelSchedule(choice, place, data.draw(st.integers(0, n)) if profile.equal else n)


@settings(_quick, max_examples=examples(200))
@given(data=st.data(), disk=disks)
def test_schedules_are_priced_as_they_are_simulated(data: st.DataObject, disk: Disk) -> None:
    profile = data.draw(profiles(steps=6, candidates=3))
    schedule, s = _drawn(data, profile), streams_of(profile, disk)
    makespan, spans = simulate(profile, schedule, disk)
    assert math.isclose(streamed_ms(s, schedule), makespan, abs_tol=1e-9)
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
    schedule, s = _drawn(data, profile), streams_of(profile, disk)
    found = descended(s, schedule, math.inf)
    least = streamed_ms(s, found)
    assert least <= streamed_ms(s, schedule)
    jumps = (-4, -2, -1, 1, 2, 4)
    changed = [replace(found, widen_from=found.widen_from + j) for j in jumps if found.widen_from + j in s.costs.widenings()]
    for k, layer in enumerate(profile.layers):
        for o, place in product(range(len(layer.candidates)), range(MAIN, profile.queues)):
            choice, places = list(found.choice), list(found.place)
            choice[k], places[k] = o, place
            changed.append(replace(found, choice=tuple(choice), place=tuple(places)))
    assert all(streamed_ms(s, other) >= least - _ROUNDING for other in changed)


@settings(_quick, max_examples=examples(200))
@given(data=st.data(), disk=disks)
def test_no_schedule_is_faster_than_the_bound_of_its_widening(data: st.DataObject, disk: Disk) -> None:
    profile = data.draw(profiles(steps=6, candidates=3))
    schedule, s = _drawn(data, profile), streams_of(profile, disk)
    bounds, multipliers = streamed_bounds(s)
    assert np.allclose(multipliers.sum(axis=1), 1.0)
    assert bounds[schedule.widen_from - s.costs.widenings()[0]] <= streamed_ms(s, schedule) + _ROUNDING


@settings(_quick, max_examples=examples(100))
@given(data=st.data(), disk=disks)
def test_the_program_with_a_disk_is_a_relaxation(data: st.DataObject, disk: Disk) -> None:
    profile = data.draw(profiles(steps=5, candidates=2))
    schedule, s = _drawn(data, profile), streams_of(profile, disk)
    widenings, makespan = s.costs.widenings(), streamed_ms(s, schedule)
    solution = solve(streamed_program(s, schedule.widen_from, None, np.inf).program, gap=0.0, time_limit_s=10.0)
    assert solution.bound <= makespan + _ROUNDING
    program = streamed_program(s, data.draw(st.sampled_from(widenings)), None, np.inf)
    relaxed = relax(program.program)
    if s.costs.queues <= 1:  # its multipliers bound every widening, and give its own bound again
        carried = carried_bounds(s, program, relaxed)
        assert carried[schedule.widen_from - widenings[0]] <= makespan + _ROUNDING
        assert math.isclose(carried[program.widen_from - widenings[0]], relaxed.bound, abs_tol=_ROUNDING)


@settings(_quick, max_examples=examples(40))
@given(profile=profiles(steps=3, candidates=2), disk=disks)
def test_plan_and_bound_enclose_the_optimum(profile: Profile, disk: Disk) -> None:
    n, s = len(profile.layers), streams_of(profile, disk)
    choices = list(product(*(range(len(layer.candidates)) for layer in profile.layers)))
    places = list(product(range(MAIN, profile.queues), repeat=n))
    best = min(streamed_ms(s, KernelSchedule(c, p, w)) for c in choices for p in places for w in s.costs.widenings())
    for searched in (profile, pareto(profile, disk=True)):  # the filter loses no optimum
        found = streamed(searched, disk, _SEARCH)
        assert found.lower_bound_ms <= best + _ROUNDING
        assert best <= found.makespan_ms + _ROUNDING
        assert found.makespan_ms <= best * 1.1 + _ROUNDING


@settings(_quick, max_examples=examples(60))
@given(data=st.data())
def test_a_fast_disk_is_as_good_as_memory(data: st.DataObject) -> None:
    profile = data.draw(profiles(steps=6, candidates=2))
    schedule, s = _drawn(data, profile), streams_of(profile, Disk(1e9))
    assume(set(schedule.place) != {MAIN})  # in memory, a sequence is without contention
    assert math.isclose(streamed_ms(s, schedule), makespan_ms(s.costs, schedule), abs_tol=_ROUNDING)
