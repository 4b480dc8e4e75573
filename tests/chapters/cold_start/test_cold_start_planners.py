"""Planners of the cold start on instances of realistic proportions; documents of their plans."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cold_start_instances import layouts, realistic, uniform

from depth import by_day
from edgeplan.chapters.cold_start.planners.registry import PLANNERS, Options, lower_bound_ms, outcomes, plan_start
from edgeplan.errors import FormatError, ParamsError
from edgeplan.planning.document import Plan, Target, check_fits, plan_of, plan_text
from edgeplan.planning.machine import cost_arrays, simulate
from edgeplan.planning.optimal import Outcome, Search, optimal
from edgeplan.planning.profile import (
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


@pytest.mark.parametrize("planner", PLANNERS)
def test_the_start_is_added_to_makespan_and_bound(planner: str) -> None:
    profile = realistic(12, 3)
    later = replace(profile, start_ms=7.5)
    before, after = (plan_start([p], planner, TARGET, options=ON_DISK) for p in (profile, later))
    assert after.makespan_ms == pytest.approx(before.makespan_ms + 7.5)
    assert after.lower_bound_ms == pytest.approx(before.lower_bound_ms + 7.5, rel=2e-3)
    assert lower_bound_ms([later]) == pytest.approx(lower_bound_ms([profile]) + 7.5)
    assert work_bound_ms(later) == work_bound_ms(profile)
    outcome = outcomes([later], planner, ON_DISK)[later.layout]
    assert simulate(outcome.profile, outcome.schedule, outcome.disk)[0] == pytest.approx(outcome.makespan_ms)
    assert min(span.start_ms for span in outcome.timeline()) == 7.5


@pytest.mark.parametrize("preparation", by_day([1.0, 0.3, 3.0], least=2))
@pytest.mark.parametrize("steps", by_day([20, 155, 54], least=2))
@pytest.mark.parametrize("little_cores", [0, 1])
def test_gap_is_proven_on_realistic_models(steps: int, little_cores: int, preparation: float) -> None:
    profile = pareto(
        realistic(steps, steps, little_cores=little_cores, little_ratio=1.0 + little_cores, preparation=preparation)
    )
    planned = optimal(cost_arrays(profile))
    assert planned.gap <= 0.01
    assert simulate(profile, planned.schedule)[0] == pytest.approx(planned.makespan_ms, rel=1e-9)
    assert work_bound_ms(profile) <= planned.lower_bound_ms


@pytest.mark.parametrize("steps", [20, 100])
def test_several_little_cores_have_a_bound_too(steps: int) -> None:
    profile = pareto(realistic(steps, 1, little_cores=3, little_ratio=3.0))
    planned = optimal(cost_arrays(profile))
    fewer = optimal(cost_arrays(pareto(realistic(steps, 1, little_cores=1, little_ratio=3.0))))
    assert planned.lower_bound_ms <= planned.makespan_ms < fewer.makespan_ms
    assert planned.gap <= 0.03  # the search ends by the clock


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


def test_ablation_without_caching_uses_raw_weights_only() -> None:
    profile = realistic(10, 3)
    for planner in ("warm", "K"):
        assert {c.source for c in outcomes([profile], planner)["nhwc"].chosen} == {"raw"}
    fastest = outcomes([profile], "warm")["nhwc"].chosen
    for c, layer in zip(fastest, profile.layers, strict=True):
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


def test_unknown_planner_missing_profile_and_disk_are_named() -> None:
    with pytest.raises(ParamsError, match=r"no planner 'best'(.|\n)*optimal"):
        plan_start(layouts(2, 1), "best", TARGET)
    with pytest.raises(FormatError, match="no profile"):
        plan_start([], "optimal", TARGET)
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
        ("read_big_ms", None, "read_ms is by core class"),
        ("execute_1_ms", None, "misses a width"),
        ("little_ratio", 0.5, "differ between the rows"),
        ("members", "conv0", "several names"),
    ],
)
def test_a_bad_cell_is_named(column: str, value: Any, message: str) -> None:
    frame = to_frame([realistic(2, 1)])
    frame[column] = frame[column].astype(object)
    frame.loc[len(frame) - 1, column] = value
    if column != "members":
        frame[column] = frame[column].astype(float)
    with pytest.raises(FormatError, match=message):
        from_frame(frame)


def test_missing_and_misused_columns_are_named() -> None:
    frame = to_frame([realistic(2, 1)])
    with pytest.raises(FormatError, match="transform_big_ms"):
        from_frame(frame.drop(columns="transform_big_ms"))
    for column, value in (("read_bytes", "many"), ("members", "{")):
        with pytest.raises(FormatError, match="not of its column's type"):
            from_frame(frame.assign(**{column: value}))


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
    document = plan_start([uniform([(1, 4, 3), (5, 4, 3)])], "optimal", TARGET)
    assert document.main == (0,)
    assert document.queues == ((1,),)
    assert document.widen_from == 1
    assert document.makespan_ms == 8
    assert document.gap < 1e-3
    assert document.read_bytes == 200
    assert [document.step(k).place for k in (0, 1)] == ["main", "prepare:0"]
    assert (document.step(0).implementation, document.step(0).source) == ("k", "raw")


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "format_version"),
        ({"extra": 1}, "extra"),
        ({"widen_from": -1}, "widen_from"),
    ],
)
def test_a_plan_that_does_not_fit_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        plan_of(json.dumps(json.loads(plan_text(_plan())) | changes), "")


def test_truncated_plans_say_what_to_do() -> None:
    whole = plan_text(_plan())
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
