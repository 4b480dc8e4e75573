"""Planners of partitions on instances worked out by hand and of realistic proportions."""

import json
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from partition_instances import Builder, bert, chain, inception_v3, ladder, module

from edgeplan.errors import DeviceError, ParamsError
from edgeplan.planning.partition import baselines
from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.margin import admitted
from edgeplan.planning.partition.modules import cuts, modules
from edgeplan.planning.partition.parallel import SearchLimits, parallel
from edgeplan.planning.partition.plan import PartitionPlan
from edgeplan.planning.partition.planner import BASELINES, compared, outcome, plan
from edgeplan.planning.partition.quick import load_bound_ms
from edgeplan.planning.partition.sequential import sequential
from edgeplan.planning.partition.simulate import OptionSchedule, in_sequence, open_boundary, side_by_side, simulate

branches = pytest.mark.skipif(find_spec("ortools") is None, reason="OR-tools is not installed")
_SEARCH = SearchLimits(gap=1e-3, time_limit_s=120.0)  # a busy machine takes long; a quiet one a second

Operator = dict[str, Any]


def operator(name: str, inputs: str, cpu: float, gpu: float, *splits: tuple[float, float, float], **more: Any) -> Operator:
    """An operator; `inputs` are letters, splits (share, cpu, gpu)."""
    options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
    options += [{"on": "split", "cpu_share": r, "cpu_ms": c, "gpu_ms": g} for r, c, g in splits]
    return {"name": name, "inputs": list(inputs), "options": options, **more}


def costs_of(*operators: Operator, hand_over: float = 0.0, **more: Any) -> PairCosts:
    head = {"format_version": 1, "model": "m", "cpu_to_gpu_ms": hand_over, "gpu_to_cpu_ms": hand_over}
    return parse_costs(json.dumps({**head, **more, "operators": operators}).encode(), "costs.json")


def kinds(made: PartitionPlan) -> str:
    """One letter for each step."""
    return "".join({"cpu": "c", "gpu": "g", "split": "s"}[step.on] for step in made.steps)


def reason(made: PartitionPlan, name: str) -> str:
    return next(step.whole_because for step in made.steps if step.name == name)


HALF = (0.5, 2.0, 2.0)


def test_a_chain_by_hand() -> None:
    # a whole on the CPU 1, hand-over .1, b split 2, hand-over .1, c whole on the GPU 1. Without the split: 1 + 4 + .1 + 1.
    costs = costs_of(operator("a", "", 1, 9), operator("b", "a", 4, 4, HALF), operator("c", "b", 9, 1), hand_over=0.1)
    made = plan(costs, "sequential")
    assert (kinds(made), made.makespan_ms) == ("csg", pytest.approx(4.2))
    assert (made.optimal, made.better_single_ms) == (True, 14.0)
    assert [step.start_ms for step in made.steps] == pytest.approx([0.0, 1.1, 3.2])


def test_a_split_must_gain_more_than_its_error() -> None:
    a = operator("a", "", 4, 4, (0.5, 3.5, 3.6))
    assert kinds(plan(costs_of(a, error=0.05), "sequential")) == "s"
    made = plan(costs_of(a, error=0.15), "sequential")
    assert kinds(made) == "c"
    assert "gain" in reason(made, "a")
    assert "0.4 ms, is within the error of 0.6 ms" in reason(made, "a")
    assert kinds(plan(costs_of({**a, "error": 0.01}, error=0.15), "sequential")) == "s"


def test_operators_below_the_cost_of_a_hand_over_stay_on_one_processor() -> None:
    steps = [operator(n, p, 0.02, 0.025, (0.5, 0.012, 0.012)) for n, p in zip("abcd", ["", *"abc"], strict=True)]
    made = plan(costs_of(*steps, hand_over=0.05), "sequential")
    assert (kinds(made), made.makespan_ms) == ("cccc", pytest.approx(0.08))
    assert made.admitted_splits == 4
    assert all("hand-overs" in step.whole_because for step in made.steps)


def test_what_cannot_be_split_says_why() -> None:
    made = plan(
        costs_of(
            operator("a", "", 1, 2, unsplittable="a batch of 1 cannot be split by batch"),
            operator("b", "a", 1, 2),
            operator("c", "b", 2, 2, (0.5, 3, 3)),
        ),
        "sequential",
    )
    assert reason(made, "a") == "a batch of 1 cannot be split by batch"
    assert reason(made, "b") == "it has no split"
    assert reason(made, "c").startswith("no split is faster: split, 50 % on the CPU takes 3 ms")


def test_what_only_one_processor_can_run_is_part_of_the_other_ones_plan() -> None:
    only = {"name": "b", "inputs": ["a"], "options": [{"on": "cpu", "cpu_ms": 1.0}]}
    costs = costs_of(operator("a", "", 5, 1), only, operator("c", "b", 5, 1), hand_over=0.25)
    assert baselines.single(costs, GPU) == (1, 0, 1)
    made = plan(costs, "sequential")
    assert (kinds(made), made.better_single, made.better_single_ms) == ("gcg", "gpu", 3.5)


@branches
def test_the_bound_pays_for_contention_though_one_pair_of_loads_has_none() -> None:
    contention = [{"cpu_load": "compute", "gpu_load": "compute", "cpu_factor": 1.5, "gpu_factor": 1.5}]
    inner = [operator(name, "a", 10, 10) for name in "bcde"]
    ends = operator("a", "", 0.1, 0.1, load="bandwidth"), operator("f", "bcde", 0.1, 0.1, load="bandwidth")
    still = operator("g", "a", 0.1, 0.1, load="bandwidth")
    costs = costs_of(ends[0], *inner, still, ends[1], contention=contention)
    made = plan(costs, "parallel", _SEARCH)
    # Four steps of 10, two on each processor beside each other: 20 of work, 30 of time.
    assert made.makespan_ms == pytest.approx(30.2, abs=0.15)
    assert made.lower_bound_ms > 29.9


def test_a_hand_over_that_passes_a_cut_is_not_cut() -> None:
    a = operator("a", "", 1, 9, to_gpu_ms=5)
    steps = (a, operator("b", "a", 1, 1), operator("c", "b", 1, 1), operator("d", "ac", 9, 1))
    assert cuts(costs_of(*steps)) == [0, 3]
    assert cuts(costs_of({**a, "to_gpu_ms": 2}, *steps[1:])) == [0, 1, 2, 3]
    found = modules(costs_of(*steps), [0, 3])
    assert [m.steps for m in found] == [(), (1, 2), ()]
    assert found[1].boundary(CPU, GPU).direct_ms == 5


def test_chains_need_no_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    costs = chain(20, 5).costs()
    assert plan(costs, "parallel").makespan_ms == pytest.approx(plan(costs, "sequential").makespan_ms)


def test_without_the_solver_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(DeviceError, match=r"pip install 'edgeplan\[partition\]'"):
        plan(module("A", 1).costs(), "parallel")
    assert plan(module("A", 1).costs(), "sequential").optimal


def test_an_unknown_mode_is_told() -> None:
    with pytest.raises(ParamsError, match="sequential, parallel"):
        outcome(chain(2, 1).costs(), "best")


@branches
@pytest.mark.parametrize("kind", ["A", "C", "E", "bert"])
@pytest.mark.parametrize("seed", [1, 2])
def test_modules_of_published_models_are_planned_and_proven(kind: str, seed: int) -> None:
    costs = module(kind, seed).costs(error=0.03)
    made = plan(costs, "parallel", _SEARCH)
    assert made.gap <= 0.02
    assert load_bound_ms(admitted(costs)) <= made.makespan_ms
    in_order = plan(costs, "sequential")
    assert made.makespan_ms < in_order.makespan_ms < made.better_single_ms
    queues = (made.cpu, made.gpu)
    choice = tuple([o.index for o in s.options].index(p.option) for s, p in zip(costs.steps, made.steps, strict=True))
    assert simulate(costs, OptionSchedule(choice, queues)).makespan_ms == pytest.approx(made.makespan_ms)


@branches
def test_modules_of_equal_costs_are_solved_once() -> None:
    costs = admitted(bert(1).costs())
    found = parallel(costs, _SEARCH)
    assert "12 branch modules (1 different)" in found.note
    one = parallel(admitted(module("bert", 1).costs()), _SEARCH)
    assert found.makespan_ms > 11 * one.makespan_ms * 0.9


@branches
def test_without_time_there_is_a_plan_with_its_gap() -> None:
    costs = inception_v3(1).costs()
    made = plan(costs, "parallel", SearchLimits(time_limit_s=0.0))
    assert not made.optimal
    assert made.lower_bound_ms < made.makespan_ms <= plan(costs, "sequential").makespan_ms
    later = plan(costs, "parallel", SearchLimits(gap=made.gap / 2, time_limit_s=120.0))
    assert later.gap <= made.gap / 2
    assert later.makespan_ms <= made.makespan_ms + 1e-9


def test_where_outputs_must_be_moved_few_states_still_bound() -> None:
    costs = admitted(ladder(300, 1, reach=14).costs(mb_per_ms=1.0))
    found = sequential(costs)
    assert found.lower_bound_ms <= found.makespan_ms
    assert in_sequence(costs, found.choice).makespan_ms == pytest.approx(found.makespan_ms)
    shared = sequential(admitted(ladder(300, 1, reach=14).costs()))
    assert shared.makespan_ms == shared.lower_bound_ms <= found.makespan_ms


def test_equal_and_fixed_ratios() -> None:
    # One half takes 6 and 1; a quarter on the CPU 3 and 3.
    steps = (
        operator("a", "", 12, 4, (0.25, 3, 3), (0.5, 6, 2)),
        operator("b", "a", 4, 4, (0.25, 1, 3), (0.5, 2, 2)),
        operator("c", "b", 1, 2),
    )
    costs = costs_of(*steps)
    assert [o.cpu_share for o in costs.chosen(baselines.equal(costs))] == [0.5, 0.5, 1.0]
    assert [o.cpu_share for o in costs.chosen(baselines.fixed(costs))] == [0.25, 0.25, 1.0]
    found = compared(costs)
    assert list(found) == list(BASELINES)
    assert (found["equal"], found["fixed"], found["greedy"]) == (9.0, 7.0, 6.0)
    assert plan(costs, "sequential").makespan_ms == 6.0


def test_options_that_others_beat_are_dropped() -> None:
    costs = costs_of(operator("a", "", 5, 4, (0.25, 2, 3), (0.5, 2, 3.5), (0.75, 3, 2), (0.9, 1, 4)))
    kept = admitted(costs).steps[0].options
    assert [(o.cpu_ms, o.gpu_ms) for o in kept if o.kind == SPLIT] == [(2, 3), (3, 2)]
    assert [o.index for o in kept] == [0, 1, 2, 4]


def test_queues_that_wait_for_each_other_are_told() -> None:
    costs = costs_of(operator("a", "", 1, 9), operator("b", "a", 1, 9))
    with pytest.raises(ValueError, match="wait for each other"):
        side_by_side(costs, OptionSchedule((0, 0), ((1, 0), ())), open_boundary(costs))
    with pytest.raises(ValueError, match="do not hold"):
        side_by_side(costs, OptionSchedule((0, 0), ((0,), (1,))), open_boundary(costs))


def test_instances_have_the_sizes_of_the_published_models() -> None:
    assert [len(module(kind, 1).operators) for kind in ("A", "C", "E", "bert")] == [10, 13, 12, 13]
    assert len(bert(1).operators) == 1 + 12 * 12
    convolutions = [o for o in inception_v3(1).operators if o["load"] == "compute"]
    assert len(convolutions) == 94 + 1  # and the classifier
    assert isinstance(inception_v3(1), Builder)
