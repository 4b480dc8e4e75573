"""Properties of partition plans: valid, priced by simulation, never above one processor, bounded from below, optimal."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_reference import choices, documents, hand_over, read

from depth import examples
from edgeplan.planning.partition.costs import KINDS, PairCosts, better_single, greedy, in_sequence
from edgeplan.planning.partition.eop import eop
from edgeplan.planning.partition.planner import PartitionPlan, admitted, plan, sequential

_quick = settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])


def assert_valid(costs: PairCosts, made: PartitionPlan) -> None:
    """Dependencies, and one part at a time on each processor."""
    position = {step.name: k for k, step in enumerate(made.steps)}
    kinds = [KINDS.index(step.on) for step in made.steps]
    for k, step in enumerate(made.steps):
        option = next(o for o in costs.steps[k].options if o.index == step.option)
        assert (option.kind, option.cpu_share) == (kinds[k], step.cpu_share)
        assert step.cpu_end_ms >= step.start_ms + option.cpu_ms - 1e-9
        assert step.gpu_end_ms >= step.start_ms + option.gpu_ms - 1e-9
        for i in costs.steps[k].inputs:
            before = made.steps[position[costs.steps[i].name]]
            assert step.start_ms >= max(before.cpu_end_ms, before.gpu_end_ms) - 1e-9
    for processor in ("cpu_end_ms", "gpu_end_ms"):
        busy = sorted((s.start_ms, getattr(s, processor)) for s in made.steps if getattr(s, processor) > s.start_ms)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(busy))
    assert made.makespan_ms == pytest.approx(max(max(s.cpu_end_ms, s.gpu_end_ms) for s in made.steps))


def choice_of(costs: PairCosts, made: PartitionPlan) -> tuple[int, ...]:
    """A plan document's choice."""
    return tuple([o.index for o in s.options].index(p.option) for s, p in zip(costs.steps, made.steps, strict=True))


@_quick
@given(documents(5, moves=True, errors=True))
def test_sequential_plans_are_what_trying_all_of_them_finds(document: dict[str, Any]) -> None:
    costs = read(document)
    made = plan(costs)
    kept = admitted(costs)
    assert made.makespan_ms == pytest.approx(min(in_sequence(kept, c).makespan_ms for c in choices(kept)))
    assert made.lower_bound_ms == pytest.approx(made.makespan_ms)
    assert_valid(costs, made)


@_quick
@given(documents(5, moves=True, errors=True))
def test_a_plan_is_never_slower_than_the_better_processor_nor_than_its_simulation(document: dict[str, Any]) -> None:
    costs = read(document)
    made = plan(costs)
    assert made.makespan_ms <= better_single(costs)[1] + 1e-9
    assert in_sequence(costs, choice_of(costs, made)).makespan_ms == pytest.approx(made.makespan_ms)
    assert sequential(admitted(costs)).makespan_ms == pytest.approx(made.makespan_ms)


@_quick
@given(documents(5, moves=True))
def test_sequential_plans_are_no_slower_than_greedy_and_eop(document: dict[str, Any]) -> None:
    costs = read(document)  # no error: all that gains is admitted
    made = plan(costs).makespan_ms
    for choice in (greedy(costs), eop(costs).choice, eop(costs, overlapped=True).choice):
        assert made <= in_sequence(costs, choice).makespan_ms + 1e-9


@_quick
@given(documents(5, moves=True), st.data())
def test_a_chain_takes_its_steps_and_what_hands_over_between_them(document: dict[str, Any], data: st.DataObject) -> None:
    for k, entry in enumerate(document["operators"]):
        entry["inputs"] = [f"s{k - 1}"] if k else []
    costs = read(document)
    choice = data.draw(st.sampled_from(choices(costs)))
    kinds = [option.kind for option in costs.chosen(choice)]
    waits = sum(hand_over(costs, k, *both) for k, both in enumerate(pairwise(kinds)))
    assert in_sequence(costs, choice).makespan_ms == sum(o.span_ms for o in costs.chosen(choice)) + waits
