"""Planners of partitions: on instances worked out by hand, and valid, bounded and optimal on small random ones."""

import json
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_frames import ladder

from depth import examples
from edgeplan.planning.partition.costs import (
    GPU,
    KINDS,
    SPLIT,
    Choice,
    PairCosts,
    better_single,
    equal,
    fixed,
    in_sequence,
    single,
)
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.planner import BASELINES, PartitionPlan, admitted, compared, plan, sequential_plan

Operator = dict[str, Any]


def operator(name: str, inputs: str, cpu: float, gpu: float, *splits: tuple[float, float, float], **more: Any) -> Operator:
    """An operator; `inputs` are letters, splits (share, cpu, gpu)."""
    options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
    options += [{"on": "split", "cpu_share": r, "cpu_ms": c, "gpu_ms": g} for r, c, g in splits]
    return {"name": name, "inputs": list(inputs), "options": options, **more}


def read(document: dict[str, Any]) -> PairCosts:
    return parse_costs(json.dumps(document).encode(), "costs.json")


def costs_of(*operators: Operator, hand_over: float = 0.0, **more: Any) -> PairCosts:
    head = {"format_version": 1, "model": "m", "cpu_to_gpu_ms": hand_over, "gpu_to_cpu_ms": hand_over}
    return read({**head, **more, "operators": operators})


def kinds(made: PartitionPlan) -> str:
    """One letter for each step."""
    return "".join({"cpu": "c", "gpu": "g", "split": "s"}[step.on] for step in made.steps)


def reason(made: PartitionPlan, name: str) -> str:
    return next(step.whole_because for step in made.steps if step.name == name)


HALF = (0.5, 2.0, 2.0)


def test_a_chain_by_hand() -> None:
    # a whole on the CPU 1, hand-over .1, b split 2, hand-over .1, c whole on the GPU 1. Without the split: 1 + 4 + .1 + 1.
    costs = costs_of(operator("a", "", 1, 9), operator("b", "a", 4, 4, HALF), operator("c", "b", 9, 1), hand_over=0.1)
    made = plan(costs)
    assert (kinds(made), made.makespan_ms) == ("csg", pytest.approx(4.2))
    assert (made.optimal, made.better_single_ms) == (True, 14.0)
    assert [step.start_ms for step in made.steps] == pytest.approx([0.0, 1.1, 3.2])


def test_a_split_must_gain_more_than_its_error() -> None:
    a = operator("a", "", 4, 4, (0.5, 3.5, 3.6))
    assert kinds(plan(costs_of(a, error=0.05))) == "s"
    made = plan(costs_of(a, error=0.15))
    assert kinds(made) == "c"
    assert "gain" in reason(made, "a")
    assert "0.4 ms, is within the error of 0.6 ms" in reason(made, "a")
    assert kinds(plan(costs_of({**a, "error": 0.01}, error=0.15))) == "s"


def test_operators_below_the_cost_of_a_hand_over_stay_on_one_processor() -> None:
    steps = [operator(n, p, 0.02, 0.025, (0.5, 0.012, 0.012)) for n, p in zip("abcd", ["", *"abc"], strict=True)]
    made = plan(costs_of(*steps, hand_over=0.05))
    assert (kinds(made), made.makespan_ms) == ("cccc", pytest.approx(0.08))
    assert made.admitted_splits == 4
    assert all("hand-overs" in step.whole_because for step in made.steps)


def test_what_cannot_be_split_says_why() -> None:
    made = plan(
        costs_of(
            operator("a", "", 1, 2, unsplittable="a batch of 1 cannot be split by batch"),
            operator("b", "a", 1, 2),
            operator("c", "b", 2, 2, (0.5, 3, 3)),
        )
    )
    assert reason(made, "a") == "a batch of 1 cannot be split by batch"
    assert reason(made, "b") == "it has no split"
    assert reason(made, "c").startswith("no split is faster: split, 50 % on the CPU takes 3 ms")


def test_what_only_one_processor_can_run_is_part_of_the_other_ones_plan() -> None:
    only = {"name": "b", "inputs": ["a"], "options": [{"on": "cpu", "cpu_ms": 1.0}]}
    costs = costs_of(operator("a", "", 5, 1), only, operator("c", "b", 5, 1), hand_over=0.25)
    assert single(costs, GPU) == (1, 0, 1)
    made = plan(costs)
    assert (kinds(made), made.better_single, made.better_single_ms) == ("gcg", "gpu", 3.5)


def test_where_outputs_must_be_moved_few_states_still_bound() -> None:
    costs = admitted(ladder(300, 1, reach=14).costs(mb_per_ms=1.0))
    found = sequential_plan(costs)
    assert found.lower_bound_ms <= found.makespan_ms
    assert in_sequence(costs, found.choice).makespan_ms == pytest.approx(found.makespan_ms)
    shared = sequential_plan(admitted(ladder(300, 1, reach=14).costs()))
    assert shared.makespan_ms == shared.lower_bound_ms <= found.makespan_ms


def test_equal_and_fixed_ratios() -> None:
    # One half takes 6 and 1; a quarter on the CPU 3 and 3.
    steps = (
        operator("a", "", 12, 4, (0.25, 3, 3), (0.5, 6, 2)),
        operator("b", "a", 4, 4, (0.25, 1, 3), (0.5, 2, 2)),
        operator("c", "b", 1, 2),
    )
    costs = costs_of(*steps)
    assert [o.cpu_share for o in costs.chosen(equal(costs))] == [0.5, 0.5, 1.0]
    assert [o.cpu_share for o in costs.chosen(fixed(costs))] == [0.25, 0.25, 1.0]
    found = compared(costs)
    assert list(found) == list(BASELINES)
    assert (found["equal"], found["fixed"], found["greedy"]) == (9.0, 7.0, 6.0)
    assert plan(costs).makespan_ms == 6.0


def test_options_that_others_beat_are_dropped() -> None:
    costs = costs_of(operator("a", "", 5, 4, (0.25, 2, 3), (0.5, 2, 3.5), (0.75, 3, 2), (0.9, 1, 4)))
    kept = admitted(costs).steps[0].options
    assert [(o.cpu_ms, o.gpu_ms) for o in kept if o.kind == SPLIT] == [(2, 3), (3, 2)]
    assert [o.index for o in kept] == [0, 1, 2, 4]


# Times are whole quarters, so that sums are exact and ties happen.
_times = st.integers(0, 24).map(lambda n: n / 4)
_short = st.integers(0, 4).map(lambda n: n / 4)


@st.composite
def documents(draw: st.DrawFn, steps: int = 4, *, moves: bool = False, errors: bool = False) -> dict[str, Any]:
    operators: list[dict[str, Any]] = []
    for k in range(draw(st.integers(1, steps))):
        whole = draw(st.sampled_from([("cpu",), ("gpu",), ("cpu", "gpu"), ("cpu", "gpu")]))
        options: list[dict[str, Any]] = [{"on": on, f"{on}_ms": draw(_times)} for on in whole]
        shares = draw(st.lists(st.sampled_from([0.25, 0.5, 0.75]), max_size=2, unique=True))
        options += [{"on": "split", "cpu_share": r, "cpu_ms": draw(_times), "gpu_ms": draw(_times)} for r in shares]
        before = [o["name"] for o in operators]
        inputs = draw(st.lists(st.sampled_from(before), unique=True)) if before else []
        entry = {"name": f"s{k}", "inputs": inputs, "options": options}
        if moves:
            entry |= {"to_cpu_ms": draw(_short), "to_gpu_ms": draw(_short)}
        operators.append(entry)
    document: dict[str, Any] = {"format_version": 1, "model": "m", "operators": operators}
    document |= {"cpu_to_gpu_ms": draw(_short), "gpu_to_cpu_ms": draw(_short)}
    if errors:
        document["error"] = draw(st.sampled_from([0.0, 0.1, 0.5]))
    return document


def choices(costs: PairCosts) -> list[Choice]:
    return list(product(*(range(len(s.options)) for s in costs.steps)))


def hand_over(costs: PairCosts, i: int, kind: int, reader: int) -> float:
    """From the end of a step until a reader on other processors has seen it and has all of its output."""
    has = [{0}, {1}, set()][kind]
    wrote = [{0}, {1}, {0, 1}][kind]
    reads = [{0}, {1}, {0, 1}][reader]
    wait = max([(costs.cpu_to_gpu_ms, costs.gpu_to_cpu_ms)[p] for p in wrote if reads - {p}], default=0.0)
    move = max([(costs.steps[i].to_cpu_ms, costs.steps[i].to_gpu_ms)[p] for p in reads - has], default=0.0)
    return wait + move


_quick = settings(deadline=None, max_examples=examples(80), suppress_health_check=[HealthCheck.too_slow])


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
    assert made.makespan_ms <= better_single(costs)[1] + 1e-9
    assert in_sequence(costs, choice_of(costs, made)).makespan_ms == pytest.approx(made.makespan_ms)
    assert sequential_plan(kept).makespan_ms == pytest.approx(made.makespan_ms)
    if not document["error"]:  # all that gains is admitted
        assert made.makespan_ms <= min(in_sequence(costs, c).makespan_ms for c in choices(costs)) + 1e-9
    end_ms = 0.0
    for step, option in zip(made.steps, costs.chosen(choice_of(costs, made)), strict=True):
        assert (KINDS[option.kind], option.cpu_share) == (step.on, step.cpu_share)
        assert step.start_ms >= end_ms - 1e-9, "one step at a time"
        parts_ms = [step.cpu_end_ms - step.start_ms, step.gpu_end_ms - step.start_ms]
        assert parts_ms == pytest.approx([option.cpu_ms, option.gpu_ms])
        end_ms = max(step.cpu_end_ms, step.gpu_end_ms)
    assert made.makespan_ms == pytest.approx(end_ms)


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
