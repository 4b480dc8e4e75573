"""Plans of a cold start on a GPU, on small instances: held to all that there are, and to the machine that they are for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL, GpuCandidate, GpuCosts, GpuOutcome
from edgeplan.planning.optimal import Search

times = st.floats(0.01, 10.0)


@st.composite
def costs(draw: st.DrawFn, fewest: int = 1, most: int = 1) -> GpuCosts:
    """Draw a few steps with one or two kernels, each with raw and kept weights."""
    steps = []
    for _ in range(draw(st.integers(1, 3))):
        step: list[GpuCandidate] = []
        for name in ("own", "other")[: draw(st.integers(1, 2))]:
            load, first = draw(times), draw(times)
            raw = GpuCandidate(
                name, cached=False, read_ms=draw(times), pack_ms=draw(times), upload_ms=draw(times), load_ms=load,
                compile_ms=load + 20.0, first_ms=first, warm_ms=draw(times),
            )  # fmt: skip
            kept = replace(raw, cached=True, read_ms=draw(times), pack_ms=0.0, kept_bytes=8)
            step += [raw, kept]
        steps.append(tuple(step))
    return GpuCosts(tuple(steps), draw(st.integers(fewest, most)), start_ms=1.0)


def _executed_ms(chosen: tuple[GpuCandidate, ...], queues: tuple[tuple[int, ...], ...], start_ms: float) -> float:
    """The time of a plan, event by event: threads prepare their steps in order, the GPU runs each once it is ready."""
    ready = {}
    for queue in queues:
        now = start_ms
        for k in queue:
            now = ready[k] = now + chosen[k].preparation_ms(compiled=False)
    now = start_ms
    for k, one in enumerate(chosen):
        now = max(now, ready[k]) + one.first_ms
    return now


def _check(costs: GpuCosts, found: GpuOutcome) -> None:
    assert sorted(k for queue in found.queues for k in queue) == list(range(len(costs.steps)))
    assert len(found.queues) <= max(1, costs.threads)
    assert all(one in step for one, step in zip(found.choice, costs.steps, strict=True))
    assert found.lower_bound_ms <= found.makespan_ms * (1 + 1e-9)


@settings(deadline=None)  # the solver's, beside other work
@given(costs())
def test_the_optimal_plan_of_one_thread_is_the_best_of_all(costs: GpuCosts) -> None:
    found = GPU_PLANNERS[OPTIMAL](costs, Search(gap=1e-6, time_limit_s=10.0))
    _check(costs, found)
    everything = (tuple(range(len(costs.steps))),)
    best = min(_executed_ms(chosen, everything, costs.start_ms) for chosen in product(*costs.steps))
    assert found.makespan_ms == pytest.approx(best, rel=1e-5)
    assert found.lower_bound_ms <= best * (1 + 1e-6)
    assert _executed_ms(found.choice, found.queues, costs.start_ms) <= found.makespan_ms * (1 + 1e-6)


@settings(deadline=None)  # the solver's, beside other work
@given(costs(2, 3))
def test_plans_of_several_threads_are_feasible_and_their_bound_holds(costs: GpuCosts) -> None:
    found = GPU_PLANNERS[OPTIMAL](costs, Search(gap=1e-3, time_limit_s=5.0))
    _check(costs, found)
    assert _executed_ms(found.choice, found.queues, costs.start_ms) <= found.makespan_ms * (1 + 1e-6)
    best = min(
        _executed_ms(chosen, tuple(tuple(k for k, q in enumerate(places) if q == n) for n in range(costs.threads)), 1.0)
        for chosen in product(*costs.steps)
        for places in product(range(costs.threads), repeat=len(costs.steps))
    )
    assert found.lower_bound_ms <= best * (1 + 1e-6)


@settings(deadline=None)  # the solver's, beside other work
@given(costs())
def test_each_technique_is_predicted_no_slower_than_the_plan_without_it(costs: GpuCosts) -> None:
    """The ablation of Figure 13: default, K, K+C, K+C+P."""
    found = [GPU_PLANNERS[name](costs, Search()) for name in ("default", "K", "K+C", OPTIMAL)]
    for one in found:
        _check(costs, one)
    assert [one.code for one in found] == [False, False, True, True]
    for before, after in pairwise(found):
        assert after.makespan_ms <= before.makespan_ms * (1 + 1e-6)
    assert all(one.kernel == "own" and not one.cached for one in found[0].choice)


@settings(deadline=None)  # the solver's, beside other work
@given(costs())
def test_the_warm_plan_takes_the_kernels_that_are_fastest_later(costs: GpuCosts) -> None:
    found = GPU_PLANNERS["warm"](costs, Search())
    _check(costs, found)
    for one, step in zip(found.choice, costs.steps, strict=True):
        assert one.warm_ms == min(other.warm_ms for other in step)


@given(costs(), st.floats(0.0, 1.0))
def test_plans_that_take_all_at_once_are_held_to_the_best_of_all(costs: GpuCosts, fill_ms_per_byte: float) -> None:
    """Uploads are beside all else that prepares, and the GPU runs after both."""
    steps = tuple(tuple(replace(one, merged_ms=one.load_ms / 2) for one in step) for step in costs.steps)
    costs = replace(costs, steps=steps, fill_ms_per_byte=fill_ms_per_byte)

    def executed_ms(chosen: tuple[GpuCandidate, ...]) -> float:
        up = sum(one.kept_bytes * fill_ms_per_byte for one in chosen)
        return costs.start_ms + max(up, sum(one.merged_ms for one in chosen)) + sum(one.first_ms for one in chosen)

    found = GPU_PLANNERS[OPTIMAL](costs, Search())
    _check(costs, found)
    assert found.at_once
    assert all(one.cached for one in found.choice)
    best = min(executed_ms(chosen) for chosen in product(*costs.steps) if all(one.cached for one in chosen))
    assert found.lower_bound_ms <= best * (1 + 1e-9)
    assert found.makespan_ms == pytest.approx(executed_ms(found.choice))
    assert found.makespan_ms == pytest.approx(best, rel=1e-4, abs=1e-4)
