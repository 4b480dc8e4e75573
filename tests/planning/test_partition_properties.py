"""Properties of partition plans: valid, priced by simulation, never above one processor, bounded from below, optimal."""

from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_reference import by_order, choices, documents, hand_over, orders, read, schedules

from depth import examples
from edgeplan.planning.partition.baselines import better_single, greedy
from edgeplan.planning.partition.costs import CPU, GPU, KINDS, PairCosts
from edgeplan.planning.partition.eop import eop
from edgeplan.planning.partition.margin import admitted
from edgeplan.planning.partition.modules import cuts
from edgeplan.planning.partition.parallel import SearchLimits, parallel
from edgeplan.planning.partition.plan import PartitionPlan
from edgeplan.planning.partition.planner import plan
from edgeplan.planning.partition.sequential import sequential
from edgeplan.planning.partition.simulate import OptionSchedule, in_sequence, open_boundary, side_by_side, simulate

_quick = settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])
_few = settings(_quick, max_examples=examples(40))
_EXACT = SearchLimits(gap=0.0, time_limit_s=60.0)
_ROUGH = 1e-4  # ticks of the solver, of a makespan of at most some ten
branches = pytest.mark.skipif(find_spec("ortools") is None, reason="OR-tools is not installed")


def assert_valid(costs: PairCosts, made: PartitionPlan) -> None:
    """Dependencies, hand-overs, and one part at a time on each processor."""
    position = {step.name: k for k, step in enumerate(made.steps)}
    kinds = [KINDS.index(step.on) for step in made.steps]
    for k, step in enumerate(made.steps):
        option = next(o for o in costs.steps[k].options if o.index == step.option)
        assert (option.kind, option.cpu_share) == (kinds[k], step.cpu_share)
        assert step.cpu_end_ms >= step.start_ms + option.cpu_ms - 1e-9
        assert step.gpu_end_ms >= step.start_ms + option.gpu_ms - 1e-9
        for i in costs.steps[k].inputs:
            before = made.steps[position[costs.steps[i].name]]
            wait = hand_over(costs, i, kinds[i], kinds[k]) if made.cpu or made.gpu else 0.0
            assert step.start_ms >= max(before.cpu_end_ms, before.gpu_end_ms) + wait - 1e-9
    for processor in ("cpu_end_ms", "gpu_end_ms"):
        busy = sorted((s.start_ms, getattr(s, processor)) for s in made.steps if getattr(s, processor) > s.start_ms)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(busy))
    assert made.makespan_ms == pytest.approx(max(max(s.cpu_end_ms, s.gpu_end_ms) for s in made.steps))


def schedule_of(costs: PairCosts, made: PartitionPlan) -> OptionSchedule:
    """A plan document's schedule."""
    choice = tuple([o.index for o in s.options].index(p.option) for s, p in zip(costs.steps, made.steps, strict=True))
    return OptionSchedule(choice, (made.cpu, made.gpu) if made.cpu or made.gpu else None)


@_quick
@given(documents(5, moves=True, errors=True))
def test_sequential_plans_are_what_trying_all_of_them_finds(document: dict[str, Any]) -> None:
    costs = read(document)
    made = plan(costs, "sequential")
    kept = admitted(costs)
    assert made.makespan_ms == pytest.approx(min(in_sequence(kept, c).makespan_ms for c in choices(kept)))
    assert made.lower_bound_ms == pytest.approx(made.makespan_ms)
    assert_valid(costs, made)


@_quick
@given(documents(5, moves=True, errors=True))
def test_a_plan_is_never_slower_than_the_better_processor_nor_than_its_simulation(document: dict[str, Any]) -> None:
    costs = read(document)
    made = plan(costs, "sequential")
    assert made.makespan_ms <= better_single(costs)[1] + 1e-9
    assert simulate(costs, schedule_of(costs, made)).makespan_ms == pytest.approx(made.makespan_ms)
    assert sequential(admitted(costs)).makespan_ms == pytest.approx(made.makespan_ms)


@_quick
@given(documents(5, moves=True))
def test_sequential_plans_are_no_slower_than_greedy_and_eop(document: dict[str, Any]) -> None:
    costs = read(document)  # no error: all that gains is admitted
    made = plan(costs, "sequential").makespan_ms
    for choice in (greedy(costs), eop(costs).choice, eop(costs, overlapped=True).choice):
        assert made <= in_sequence(costs, choice).makespan_ms + 1e-9


@_quick
@given(documents(4, moves=True), st.data())
def test_the_simulation_is_putting_steps_behind_each_other(document: dict[str, Any], data: st.DataObject) -> None:
    costs = read(document)
    choice = data.draw(st.sampled_from(choices(costs)))
    order = data.draw(st.sampled_from(orders(costs)))
    _, ends = by_order(costs, choice, order)
    options = costs.chosen(choice)
    queues = tuple(tuple(k for k in order if (options[k].cpu_ms, options[k].gpu_ms)[p] > 0) for p in (CPU, GPU))
    found = side_by_side(costs, OptionSchedule(choice, (queues[0], queues[1])), open_boundary(costs))
    assert [s.end_ms for s in found.spans] == ends


@branches
@_few
@given(documents(4, moves=True, errors=True))
def test_plans_side_by_side_are_what_trying_all_of_them_finds(document: dict[str, Any]) -> None:
    costs = read(document)
    made = plan(costs, "parallel", _EXACT)
    least = min(ms for _, ms in schedules(admitted(costs)))
    assert made.makespan_ms == pytest.approx(least, abs=_ROUGH)
    assert made.lower_bound_ms <= least + 1e-9
    assert made.lower_bound_ms == pytest.approx(least, abs=_ROUGH)
    assert made.makespan_ms <= better_single(costs)[1] + 1e-9
    assert simulate(costs, schedule_of(costs, made)).makespan_ms == pytest.approx(made.makespan_ms)
    assert_valid(costs, made)


def _held_to_all_schedules(costs: PairCosts) -> PartitionPlan:
    """A plan side by side, between its bound and a plan in order, beside all schedules that there are."""
    kept = admitted(costs)
    made = plan(costs, "parallel", _EXACT)
    tried = [side_by_side(kept, s, open_boundary(kept)).makespan_ms for s, _ in schedules(kept)]
    assert made.lower_bound_ms <= min(tried) + 1e-9
    assert made.makespan_ms >= min(tried) - _ROUGH
    assert made.makespan_ms <= plan(costs, "sequential").makespan_ms + 1e-9
    assert simulate(costs, schedule_of(costs, made)).makespan_ms == pytest.approx(made.makespan_ms)
    return made


@branches
@_few
@given(documents(4, moves=True, contention=True))
def test_bounds_hold_under_contention_and_plans_are_priced_with_it(document: dict[str, Any]) -> None:
    costs = read(document)
    assert_valid(costs, _held_to_all_schedules(costs))


@branches
@_few
@given(documents(4, moves=True, contention=True))
def test_bounds_hold_where_readers_move_what_they_read(document: dict[str, Any]) -> None:
    costs = read({**document, "copies": "reader"})
    _held_to_all_schedules(costs)
    in_order = OptionSchedule(schedule_of(costs, plan(costs, "sequential")).choice)
    assert simulate(costs, in_order).makespan_ms == simulate(read(document), in_order).makespan_ms, "nothing runs beside"


@branches
@_few
@given(documents(4, moves=True))
def test_what_readers_move_is_found_by_the_solver(document: dict[str, Any]) -> None:
    """Without outputs of several readers and without contention plans are those that trying all of them finds."""
    costs = admitted(read({**document, "copies": "reader"}))
    if any(len(readers) > 1 for readers in costs.readers):
        return
    found = parallel(costs, _EXACT)
    least = min(side_by_side(costs, s, open_boundary(costs)).makespan_ms for s, _ in schedules(costs))
    assert found.makespan_ms == pytest.approx(least, abs=_ROUGH)
    assert found.lower_bound_ms <= least + 1e-9


@branches
@_few
@given(documents(7, moves=True))
def test_decomposed_plans_take_what_their_path_says_and_no_longer_than_sequential_ones(document: dict[str, Any]) -> None:
    costs = admitted(read(document))
    found = parallel(costs, SearchLimits(gap=0.0, time_limit_s=2.0))
    whole = simulate(costs, found.schedule).makespan_ms
    assert whole == pytest.approx(found.makespan_ms)
    assert found.lower_bound_ms <= found.makespan_ms
    assert found.lower_bound_ms <= sequential(costs).makespan_ms + 1e-9


@_quick
@given(documents(8))
def test_cuts_are_comparable_with_every_other_step(document: dict[str, Any]) -> None:
    costs = read({**document, "cpu_to_gpu_ms": 0.0, "gpu_to_cpu_ms": 0.0})
    n = len(costs.steps)
    reach = [{k} for k in range(n)]
    for k in range(n):
        for i in costs.steps[k].inputs:
            reach[k] |= reach[i]
    found = [k for k in range(n) if all(k in reach[j] or j in reach[k] for j in range(n))]
    assert cuts(costs) == found
