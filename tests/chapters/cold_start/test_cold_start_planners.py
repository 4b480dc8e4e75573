"""Planners of the cold start on instances of realistic proportions, documents of their plans, and properties of any plan."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cold_start_instances import layouts, realistic
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from depth import by_day, examples
from edgeplan.chapters.cold_start.planners.nnv12 import balanced
from edgeplan.chapters.cold_start.planners.registry import PLANNERS, Options, lower_bound_ms, outcomes, plan_start
from edgeplan.errors import FormatError, ParamsError
from edgeplan.planning.document import Plan, Target, check_fits, plan_of, plan_text
from edgeplan.planning.machine import MAIN, KernelSchedule, cost_arrays, makespan_ms, stages_ms
from edgeplan.planning.mixed_integer import carried_bounds, program, relax, solve
from edgeplan.planning.optimal import Events, Outcome, Search, cheap_bounds, optimal
from edgeplan.planning.profile import (
    SOURCES,
    Candidate,
    Contention,
    Disk,
    Fresh,
    Layer,
    Profile,
    check,
    pareto,
    work_bound_ms,
)
from edgeplan.profiling.frame import from_frame, to_frame
from edgeplan.support.frames import read_parquet

# Of the planner for an evicted page cache, which searches for as long as it may; the others have no disk.
ON_DISK = Options(Search(time_limit_s=0.6), disk=Disk(1000.0, 0.3))
TARGET = Target("m.onnx", "a" * 64, "oneDNN", "3.2", "avx512_core", "machine", 2)


@pytest.mark.parametrize("preparation", by_day([1.0, 0.3, 3.0], least=2))
@pytest.mark.parametrize("steps", by_day([20, 155, 54], least=2))
@pytest.mark.parametrize(("little_cores", "most"), [(0, 1.01), (1, 1.01), (3, 1.05)])
def test_gap_is_proven_on_realistic_models(steps: int, little_cores: int, preparation: float, most: float) -> None:
    """On several little cores queues are only relaxed, and the search ends by the clock."""
    ratio = 1.0 + min(little_cores, 2)
    profile = pareto(realistic(steps, steps, little_cores=little_cores, little_ratio=ratio, preparation=preparation))
    planned = optimal(cost_arrays(profile))
    assert planned.lower_bound_ms <= planned.makespan_ms <= most * planned.lower_bound_ms
    assert work_bound_ms(profile) <= planned.lower_bound_ms


def test_a_search_without_time_still_returns_a_bound() -> None:
    profile = pareto(realistic(40, 5))
    hasty, patient = optimal(cost_arrays(profile), Search(time_limit_s=0.0)), optimal(cost_arrays(profile), Search(gap=1e-4))
    assert hasty.lower_bound_ms <= patient.makespan_ms * (1 + 1e-9)
    assert patient.lower_bound_ms <= hasty.makespan_ms


def test_the_ablation_is_ordered() -> None:
    profile = realistic(30, 3)
    warm, k, kc, kcp = (outcomes([profile], name)["nhwc"].makespan_ms for name in ("warm", "K", "K+C", "K+C+P"))
    assert warm > k > kc > kcp
    heuristic, best = (outcomes([profile], name)["nhwc"].makespan_ms for name in ("nnv12", "optimal"))
    assert best == kcp
    assert best <= heuristic * (1 + 1e-3)


def test_warm_takes_the_fastest_of_raw_weights() -> None:
    profile = realistic(10, 3)
    for c, layer in zip(outcomes([profile], "warm")["nhwc"].chosen, profile.layers, strict=True):
        assert c.source == "raw"
        assert c.execute_ms[2] == min(o.execute_ms[2] for o in layer.candidates if o.source == "raw")


def test_fewer_bytes_beat_a_faster_kernel_on_a_slow_disk() -> None:
    small = Candidate("small", "raw", {"big": 0.1}, {"big": 0.1}, {"big": 0.5}, {1: 3.0, 2: 2.0}, 1_000_000)
    large = Candidate("large", "cached_mmap", {"big": 0.1}, {"big": 0.1}, {"big": 0.0}, {1: 2.0, 2: 1.5}, 4_000_000, 4_000_000)
    profile = Profile("m", "nhwc", 2, 0, 1.0, (Layer("s", (), (small, large)),))
    assert [len(layer.candidates) for layer in pareto(profile).layers] == [1]
    assert [len(layer.candidates) for layer in pareto(profile, disk=True).layers] == [2]
    for mb_per_s, kernel in ((200.0, "small"), (1e6, "large")):
        options = Options(disk=Disk(mb_per_s))
        assert [c.implementation for c in outcomes([profile], "evicted", options)["nhwc"].chosen] == [kernel]


def test_a_layout_that_is_given_up_is_priced() -> None:
    fast = realistic(8, 1)
    slow = replace(fast, layout="nchw", start_ms=1e4)
    found = outcomes([fast, slow], "evicted", ON_DISK)
    assert 1e4 < found["nchw"].makespan_ms < 1e5


@pytest.mark.parametrize("planner", ["optimal", "evicted"])
def test_the_most_promising_layout_is_searched_first_and_longest(planner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []
    real = PLANNERS[planner]

    def spy(profile: Profile, options: Options) -> Outcome:
        asked.append((profile.layout, options.search.time_limit_s))
        return real(profile, options)

    monkeypatch.setitem(PLANNERS, planner, spy)
    fast = realistic(8, 1)
    slow, slowest = replace(fast, layout="nchw", start_ms=1e3), replace(fast, layout="blocked", start_ms=1e4)
    found = outcomes([slowest, slow, fast], planner, replace(ON_DISK, search=Search(time_limit_s=1.5)))
    assert list(found) == ["blocked", "nchw", "nhwc"]  # as they were given
    searched = [(layout, limit) for layout, limit in asked if limit > 0]
    assert [layout for layout, _ in searched] == ["nhwc", "nchw", "blocked"]
    assert searched[0][1] > 1.0


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_best_layout_is_kept(planner: str) -> None:
    profiles = layouts(15, 11)
    each = {p.layout: plan_start([p], planner, TARGET, options=ON_DISK) for p in profiles}
    best = plan_start(profiles, planner, TARGET, options=ON_DISK)
    least = min(each.values(), key=lambda d: d.makespan_ms)
    assert best.makespan_ms <= least.makespan_ms * (1 + (1e-3 if planner != "evicted" else 0.01))  # a search with less time
    assert best.lower_bound_ms <= min(d.lower_bound_ms for d in each.values()) * (1 + 2e-3)
    if planner == "evicted":
        assert best.lower_bound_ms >= lower_bound_ms(profiles) * (1 - 2e-3)
    else:
        assert best.lower_bound_ms == pytest.approx(lower_bound_ms(profiles), rel=2e-3)
    if planner == "optimal":
        assert best.gap <= 0.002


def test_a_missing_disk_is_named() -> None:
    with pytest.raises(ParamsError, match="bandwidth"):
        outcomes([realistic(3, 1)], "evicted")


def test_weights_that_are_always_cached_are_so_without_caching() -> None:
    times, nothing = {"big": 1.0}, {"big": 0.0}
    always = Candidate("k", "cached_read", times, times, nothing, {1: 1.0, 2: 1.0})
    raw, cached = (
        Candidate("k", source, times, times, spent, {1: 1.0, 2: 1.0})
        for source, spent in (("raw", times), ("cached_read", nothing))
    )
    profile = Profile("m", "nhwc", 2, 0, 1.0, (Layer("one", (), (always,)), Layer("other", (), (raw, cached))))
    for planner in ("warm", "K"):
        assert [c.source for c in outcomes([profile], planner)["nhwc"].chosen] == ["cached_read", "raw"]


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("execute_2_ms", -1.0, "negative"),
        ("read_big_ms", math.nan, "read_ms is by core class"),
        ("execute_1_ms", math.nan, "misses a width"),
        ("little_ratio", 0.5, "differ between the rows"),
        ("members", "conv0", "several names"),
        ("read_bytes", "many", "not of its column's type"),
        ("members", "{", "not of its column's type"),
    ],
)
def test_a_bad_cell_and_a_missing_column_are_named(column: str, value: Any, message: str) -> None:
    frame = to_frame([realistic(2, 1)])
    bad = value if message.startswith("not of") else frame[column].astype(object).where(frame.index < len(frame) - 1, value)
    with pytest.raises(FormatError, match=message):
        from_frame(frame.assign(**{column: bad}))
    with pytest.raises(FormatError, match=f"{column}' is missing|misses a width"):
        from_frame(frame.drop(columns=column))


def test_inconsistent_profiles_are_refused() -> None:
    good = realistic(2, 1)
    twice = Layer("s", (), (good.layers[0].candidates[0],) * 2)
    narrow = Candidate("k", "none", {"big": 0.0}, {"big": 0.0}, {"big": 0.0}, {1: 1.0, 2: 1.0, 3: 1.0})
    for bad, message in (
        (replace(good, layers=()), "no steps"),
        (replace(good, layers=(Layer("s", (), ()),)), "no candidate"),
        (replace(good, layers=(twice,)), "same implementation"),
        (replace(good, layers=(*good.layers, Layer("s", (), (narrow,)))), "same widths"),
        (replace(good, contention=Contention(0.9)), "at least 1"),
        (replace(good, big_cores=0), "0 big"),
        (replace(good, fresh=Fresh(hand_over_ms=-1.0)), "hand_over_ms"),
    ):
        with pytest.raises(FormatError, match=message):
            check(bad)


def _plan() -> Plan:
    return plan_start(layouts(12, 4), "optimal", TARGET)


def test_plan_says_what_the_profile_says() -> None:
    nothing, times = {"big": 0.0}, {1: 4.0, 2: 3.0}
    two = (Candidate("k", "raw", {"big": preparation}, nothing, nothing, times, 100) for preparation in (1.0, 5.0))
    profile = Profile("two", "nhwc", 2, 0, 1.0, tuple(Layer(f"s{k}", (), (one,)) for k, one in enumerate(two)))
    document = plan_start([profile], "optimal", TARGET)
    assert document.main == (0,)
    assert document.queues == ((1,),)
    assert document.widen_from == 1
    assert document.makespan_ms == 8
    assert document.gap < 1e-3
    assert document.read_bytes == 200
    assert document.places == (MAIN, 0)
    assert (document.cold[0], SOURCES[document.source[0]]) == ("k", "raw")


def test_the_gap_stands_in_the_document() -> None:
    written = plan_start(layouts(12, 4), "nnv12", TARGET)
    assert written.target == TARGET
    assert len(plan_text(written)) < 1000 + 12 * 40
    document = json.loads(plan_text(written))
    assert document["gap"] == written.gap == document["makespan_ms"] / document["lower_bound_ms"] - 1 > 0
    del document["gap"]  # as earlier documents
    assert plan_of(json.dumps(document), "") == written
    assert plan_of(json.dumps(document | {"lower_bound_ms": 0.0}), "").gap == 0


@pytest.mark.committed
def test_plans_of_before_the_gap_stood_in_them_are_read() -> None:
    kept = read_parquet(Path(__file__).parents[3] / "results/cpu-onednn/cold/plans.parquet")["document"]
    assert len(kept)
    for text in kept:
        found = plan_of(text, "plans.parquet")
        assert found.gap == pytest.approx(found.makespan_ms / found.lower_bound_ms - 1, abs=1e-6)


def test_plans_that_do_not_fit_name_the_field_and_truncated_ones_say_what_to_do() -> None:
    whole = plan_text(_plan())
    for changes in ({"format_version": 2}, {"extra": 1}, {"widen_from": -1}):
        with pytest.raises(FormatError, match=next(iter(changes))):
            plan_of(json.dumps(json.loads(whole) | changes), "")
    for tenth in range(10):
        with pytest.raises(FormatError, match="does not fit") as refused:
            plan_of(whole[: len(whole) * tenth // 10], "plan.json")
        assert "edgeplan plan cold-start" in refused.value.next_step


def test_a_plan_for_something_else_is_refused() -> None:
    document = _plan()
    check_fits(document, TARGET, document.steps)
    check_fits(document, replace(TARGET, model="renamed.onnx"), ())
    for field in ("model_sha256", "library", "library_version", "isa", "machine", "threads"):
        with pytest.raises(FormatError, match=field):
            check_fits(document, replace(TARGET, **{field: "other"}), document.steps)
    with pytest.raises(FormatError, match="steps are 11"):
        check_fits(document, TARGET, document.steps[:-1])
    with pytest.raises(FormatError, match="step 0 is new"):
        check_fits(document, TARGET, ("new", *document.steps[1:]))


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


def _prepared(profile: Profile, c: Candidate, place: int, overlapped: bool) -> tuple[float, float, float]:
    """Reading, creating and transforming, written down once more; a little core takes its own times, or its ratio of others."""
    little = place != MAIN and not profile.equal
    read, create, transform = (t.get("little" if little else "big", t["big"]) for t in (c.read_ms, c.create_ms, c.transform_ms))
    fresh, factors, raw = profile.fresh, profile.contention if overlapped else Contention(), c.source == "raw"
    if place == MAIN:
        reading = making = factors.raw_main if raw else factors.main
    else:
        reading, making = (factors.raw_read, factors.raw_prepare) if raw else (factors.read, factors.prepare)
    if little:
        reading, making = reading * profile.little_ratio, making * profile.little_ratio
    reading *= fresh.map if c.source == "cached_mmap" else fresh.read
    return read * reading, create * fresh.create * making, transform * fresh.transform * making


_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
_ROUNDING = 1e-6
_SEARCH = Search(time_limit_s=0.2)  # what holds does not depend on how long is searched


@dataclass
class _Core:
    """A core's preparations in order: steps before place `at` are prepared, kernels of those before `made` are made."""

    own: tuple[int, ...]
    prepare: list[tuple[float, float, float]]
    arrivals: list[float]
    ready: list[float]
    at: int = 0
    made: int = 0

    def goes_on(self, now: float) -> bool:
        """Whether it has something to do: weights that have come, or a kernel to make."""
        return self.at < len(self.own) and (self.arrivals[self.own[self.at]] <= now or self.made < len(self.own))

    def step(self, now: float) -> float:
        """Make a kernel while the weights of the next step are on their way, else prepare that step; the end."""
        k = self.own[self.at]
        if self.made < len(self.own) and self.arrivals[k] > now:
            self.made += 1
            return now + self.prepare[self.own[self.made - 1]][1]
        if self.made == self.at:
            now, self.made = now + self.prepare[k][1], self.made + 1
        self.at += 1
        read, _, transform = self.prepare[k]
        self.ready[k] = max(now, self.arrivals[k]) + read + transform
        return self.ready[k]

    def all(self, now: float) -> float:
        while self.at < len(self.own):
            now = self.step(now)
        return now


def simulated_ms(profile: Profile, schedule: KernelSchedule, disk: Disk | None = None, order: Sequence[int] = ()) -> float:
    """The makespan, event by event, with weights in memory or from a disk, in the order of the steps or prepared in another."""
    chosen = [layer.candidates[o] for layer, o in zip(profile.layers, schedule.choice, strict=True)]
    n = len(chosen)
    together = schedule.widen_from if profile.equal else n
    alone = together == (0 if profile.equal else n) and set(schedule.place) == {MAIN}
    overlapped = not alone if disk is None else profile.queues > 0
    arrivals, ready = [0.0] * n, [math.inf] * n
    if disk is not None:
        sizes = np.cumsum([c.read_bytes for c in chosen]).tolist()
        come = (profile.start_ms + disk.latency_ms + disk.transfer_ms(size) for size in sizes)
        arrivals = [arrival if c.read_bytes else 0.0 for arrival, c in zip(come, chosen, strict=True)]
    prepare = [_prepared(profile, c, place, overlapped) for c, place in zip(chosen, schedule.place, strict=True)]
    queues = (sorted(schedule.queue(p), key=order.index if order else None) for p in range(MAIN, profile.queues))
    main, *others = (_Core(tuple(queue), prepare, arrivals, ready) for queue in queues)
    now = profile.start_ms
    free = [core.all(now) for core in others]
    for k, c in enumerate(chosen):
        if k == together:
            now = max([main.all(now), *free])
        while ready[k] > now:
            if main.goes_on(now) or main.own[main.at : main.at + 1] == (k,):
                now = main.step(now)
            else:
                now = min([ready[k], *(arrivals[waiting] for waiting in main.own[main.at : main.at + 1])])
        fresh, factors = profile.fresh, profile.contention if overlapped else Contention()
        if profile.equal and k >= together:
            now += c.execute_ms[profile.big_cores] * fresh.wide
        else:
            time = c.execute_ms[profile.narrow] * (fresh.wide if profile.equal and profile.narrow > 1 else fresh.execute)
            now += time * factors.execute + (fresh.hand_over_ms if overlapped else 0.0)
    return now


@pytest.mark.parametrize("planner", PLANNERS)
@settings(_quick, max_examples=examples(25))
@given(profile=profiles(steps=9, candidates=4))
def test_every_plan_takes_as_long_as_is_predicted_and_no_less_than_is_proven(planner: str, profile: Profile) -> None:
    later = replace(profile, start_ms=7.5)
    outcome = outcomes([later], planner, Options(_SEARCH, disk=Disk(1e-5, 0.5)))["nhwc"]
    makespan = simulated_ms(outcome.profile, outcome.schedule, outcome.disk)
    assert math.isclose(makespan, outcome.makespan_ms, abs_tol=1e-9), "with the start"
    proven = optimal(cost_arrays(pareto(profile)))
    assert lower_bound_ms([later]) == pytest.approx(proven.lower_bound_ms + 7.5, rel=2e-3)
    assert proven.lower_bound_ms + 7.5 <= makespan + _ROUNDING
    assert work_bound_ms(later) <= proven.lower_bound_ms + _ROUNDING, "without it"


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
    written = plan_start([profile], planner, TARGET, options=Options(_SEARCH, disk=Disk(1e-5, 0.5)))
    assert Plan.model_validate_json(written.model_dump_json()) == written
    assert written.steps == tuple(layer.name for layer in profile.layers)
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
    priced = Events(costs).makespan_ms(schedule) if disk else makespan_ms(costs, schedule)
    assert math.isclose(priced, simulated_ms(profile, schedule, disk), abs_tol=1e-9)
    in_sequence = replace(schedule, place=(MAIN,) * costs.steps)
    assert math.isclose(sum(stages_ms(profile, in_sequence).values()), simulated_ms(profile, in_sequence), abs_tol=1e-9)
    if set(schedule.place) != {MAIN} and disk is None:  # nothing is without contention
        work = np.where(np.array(schedule.place)[:, None] == MAIN, costs.main, costs.queue)
        work = (work + costs.execution(schedule.widen_from))[np.arange(costs.steps), schedule.choice]
        assert math.isclose(sum(stages_ms(profile, schedule).values()), work.sum(), abs_tol=1e-9)


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


@settings(_quick, max_examples=examples(200))
@given(data=st.data(), disk=st.none() | disks)
def test_no_schedule_is_faster_than_the_bounds_of_its_widening_and_of_its_program(
    data: st.DataObject, disk: Disk | None
) -> None:
    profile = data.draw(profiles(steps=5, candidates=2))
    schedule, costs = _drawn(data, profile), cost_arrays(profile, disk)
    widenings, makespan = costs.widenings(), simulated_ms(profile, schedule, disk)
    # with everything on the main core the first widening is without contention, and bounded apart
    assume(disk is not None or set(schedule.place) != {MAIN} or schedule.widen_from != widenings[0])
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


@settings(_quick, max_examples=examples(50))
@given(profile=profiles(steps=3, candidates=2), disk=st.none() | disks)
def test_plan_and_bound_enclose_the_optimum(profile: Profile, disk: Disk | None) -> None:
    n, widenings = len(profile.layers), cost_arrays(profile).widenings()
    choices = list(product(*(range(len(layer.candidates)) for layer in profile.layers)))
    places = list(product(range(MAIN, profile.queues), repeat=n))
    orders = [()] if disk else permutations(range(n))  # with a disk bounds are of the order of the steps
    schedules = product(choices, places, widenings, orders)
    best = min(simulated_ms(profile, KernelSchedule(*placed), disk, order) for *placed, order in schedules)
    exact = disk is None and profile.queues == 1
    most = 1.001 if exact else 1.1 if disk else math.inf  # several queues are only relaxed
    for searched in (profile, pareto(profile, disk=disk is not None)):  # the filter loses no optimum
        found = optimal(cost_arrays(searched, disk), _SEARCH)
        assert found.lower_bound_ms <= best + _ROUNDING
        assert best <= found.makespan_ms + _ROUNDING
        assert found.makespan_ms <= best * most + _ROUNDING
        assert not exact or found.lower_bound_ms == 0 or found.makespan_ms <= found.lower_bound_ms * 1.001 + _ROUNDING
    for planner in () if disk else PLANNERS:
        assert outcomes([profile], planner, Options(_SEARCH, disk=Disk(1e-5)))["nhwc"].makespan_ms >= best - _ROUNDING
