"""Planners of partitions: on instances worked out by hand, and valid, bounded and optimal on small random ones; EOP's."""

import json
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_frames import chain

from depth import examples
from edgeplan.planning.partition.costs import (
    CPU,
    GPU,
    KINDS,
    SPLIT,
    Choice,
    Option,
    PairCosts,
    PairStep,
    better_single,
    equal,
    fixed,
    in_sequence,
    single,
)
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.eop import eop, fitted_costs, fitted_pattern, key_operators, pattern_match, tune
from edgeplan.planning.partition.planner import BASELINES, PartitionPlan, admitted, compared, outcome, plan, sequential_plan

Operator = dict[str, Any]
_OF_SPLIT = ("cpu_share", "cpu_ms", "gpu_ms", "dimension")


def operator(name: str, inputs: str, cpu: float, gpu: float, *splits: tuple[float | str, ...], **more: Any) -> Operator:
    """An operator; `inputs` are letters, splits (share, cpu, gpu) or with a dimension behind."""
    options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
    options += [{"on": "split", **dict(zip(_OF_SPLIT, split, strict=False))} for split in splits]
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
    moved, shared = (chain(300, 1, mb_per_ms=speed) for speed in (1.0, 0.0))
    for document in (moved, shared):
        for k, entry in enumerate(document["operators"][14:]):
            entry["inputs"].append(f"conv{k}")
    costs = admitted(read(moved))
    found = sequential_plan(costs)
    assert found.lower_bound_ms < found.makespan_ms
    assert in_sequence(costs, found.choice).makespan_ms == pytest.approx(found.makespan_ms)
    of_shared = sequential_plan(admitted(read(shared)))
    assert of_shared.makespan_ms == of_shared.lower_bound_ms <= found.makespan_ms


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
    waits = [hand_over(costs, k, *both) for k, both in enumerate(pairwise(kinds))]
    assert in_sequence(costs, choice).makespan_ms == sum(o.span_ms for o in costs.chosen(choice)) + sum(waits)
    assert [costs.delay_ms(k, *both) for k, both in enumerate(pairwise(kinds))] == waits


# EOP

SHARES = [k / 16 for k in range(1, 17)]


Splits = list[tuple[float, float, float, str]]


def chain_of(*operators: tuple[float, float, Splits], hand_over: float = 0.0) -> PairCosts:
    """A chain of operators: whole on the CPU, on the GPU, and splits of (share, cpu, gpu, dimension)."""
    names = "abcd"[: len(operators)]
    each = zip(names, ["", *names], operators, strict=False)
    steps = [operator(name, before, cpu, gpu, *splits) for name, before, (cpu, gpu, splits) in each]
    return costs_of(*steps, hand_over=hand_over)


def linear(cpu: float, gpu: float, dimension: str = "batch") -> tuple[float, float, Splits]:
    """An operator whose parts take their share of the whole."""
    return cpu, gpu, [(r, cpu * r, gpu * (1 - r), dimension) for r in SHARES[:-1]]


@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_patterns_are_told_apart(noise: float) -> None:
    rng = np.random.default_rng(7)
    x = np.asarray(SHARES)
    for name, times in {
        "constant": np.full(16, 3.0),
        "linear": 1 + 4 * x,
        "staircase": 1 + 2 * np.ceil(x / 0.25 - 1e-9),
    }.items():
        found = fitted_pattern(SHARES, (times * (1 + noise * rng.standard_normal(16))).tolist())
        assert found.name == name
        assert found.at(x) == pytest.approx(times, rel=0.05)
        if name == "staircase":
            assert found.width == pytest.approx(0.25)


def test_patterns_have_fewer_parameters_than_samples_and_no_negative_times() -> None:
    for points, names in ((1, {"constant"}), (2, {"constant"}), (3, {"constant", "linear"})):
        assert fitted_pattern(SHARES[:points], [1.0, 2.0, 3.0][:points]).name in names
    falling = fitted_pattern([0.2, 0.4, 0.6, 0.8], [4.0, 3.0, 2.0, 1.0])
    assert falling.at([0.0, 1.0]).tolist() == pytest.approx([0.0, 0.0])
    assert falling.at([2.0]).tolist() == [0.0]


def test_leaving_one_out_is_what_fitting_without_it_says() -> None:
    rng = np.random.default_rng(3)
    t = 1 + 4 * np.asarray(SHARES) + 0.1 * rng.standard_normal(16)
    fits = [np.polyfit(np.delete(SHARES, k), np.delete(t, k), 1) for k in range(16)]
    errors = [t[k] - np.polyval(one, SHARES[k]) for k, one in enumerate(fits)]
    found = fitted_pattern(SHARES, t.tolist())
    assert (found.name, found.error_ms) == ("linear", pytest.approx(np.sqrt(np.mean(np.square(errors)))))


def test_ratios_balance_both_processors() -> None:
    # 3 r = 1 - r at a quarter; cm is nothing.
    found = eop(chain_of(linear(3.0, 1.0)))
    assert found.ratios == (0.25,)
    assert found.estimate_ms == pytest.approx(0.75)
    assert in_sequence(chain_of(linear(3.0, 1.0)), found.choice).makespan_ms == pytest.approx(0.75)


def test_the_dimension_of_least_time_is_taken() -> None:
    cpu, gpu, batch = linear(2.0, 2.0, "batch")
    slower = [(r, c + 0.5, g + 0.5, "HW") for r, c, g, _ in batch]
    costs = chain_of((cpu, gpu, batch + slower))
    assert pattern_match(costs, 0).dimension == "batch"
    chosen = costs.steps[0].options[eop(costs).choice[0]]
    assert (chosen.kind, chosen.dimension) == (SPLIT, "batch")


def test_what_communication_costs_more_than_it_gains_stays_whole() -> None:
    # Split in halves 1 of 2 is gained (equation 3), and one hand-over each way paid.
    for hand_over, kinds in ((0.4, [SPLIT]), (0.6, [CPU])):
        costs = chain_of(linear(2.0, 2.0), hand_over=hand_over)
        assert [o.kind for o in costs.chosen(eop(costs).choice)] in (kinds, [GPU] if kinds == [CPU] else kinds)


def test_operators_that_cannot_be_split_run_where_they_are_faster() -> None:
    costs = chain_of((1.0, 2.0, []), (2.0, 1.0, []))
    assert [o.kind for o in costs.chosen(eop(costs).choice)] == [CPU, GPU]


def test_a_constant_operator_is_not_split() -> None:
    constant = (2.0, 2.0, [(r, 2.0, 2.0, "HW") for r in SHARES[:-1]])
    costs = chain_of(constant, hand_over=0.01)
    found = eop(costs)
    assert {p.name for p in found.matched[0].patterns if p is not None} == {"constant"}
    assert costs.chosen(found.choice)[0].kind != SPLIT


def test_key_operators_take_more_than_95_percent() -> None:
    costs = chain_of(linear(90.0, 100.0), linear(3.0, 3.0), linear(5.5, 5.0), linear(2.0, 2.0))
    assert key_operators(costs) == (0, 1, 2)  # 90, 95 of 100 is not more than 95 %, 98 is
    found = eop(costs)
    assert costs.chosen(found.choice)[3].kind == CPU  # the others stay whole
    assert len(found.ratios) == 3


@pytest.mark.parametrize("seed", range(12))
def test_tuning_as_written_gains_nothing_and_as_drawn_never_loses(seed: int) -> None:
    rng = np.random.default_rng(seed)
    operators = []
    for cpu, gpu in rng.uniform(1, 5, (2, 2)).tolist():
        noise = rng.uniform(1, 1.3, (15, 2)).tolist()
        splits = [(r, cpu * r * a, gpu * (1 - r) * b, "HW") for r, (a, b) in zip(SHARES[:-1], noise, strict=True)]
        operators.append((cpu, gpu, splits))
    costs = chain_of(*operators, hand_over=0.05)
    before, op = pattern_match(costs, 0), pattern_match(costs, 1)
    apart = float(before.total_ms.min() + op.total_ms.min())
    written, drawn = tune(before, op), tune(before, op, overlapped=True)
    assert written.time_ms == pytest.approx(apart)
    assert drawn.time_ms <= apart + 1e-12


def test_tuning_as_drawn_gives_the_second_operator_more_of_the_gpu() -> None:
    # The first suits the CPU, the second the GPU: as in Figure 5, the first leaves the GPU to the second.
    costs = chain_of(linear(2.0, 4.0), linear(6.0, 2.0))
    before, op = pattern_match(costs, 0), pattern_match(costs, 1)
    drawn = tune(before, op, overlapped=True)
    assert drawn.first > before.total_ms.argmin()
    assert drawn.second < op.total_ms.argmin()
    assert drawn.time_ms < float(before.total_ms.min() + op.total_ms.min())


def test_the_estimate_adds_up_to_the_recursion() -> None:
    costs = chain_of(linear(4.0, 4.0), linear(4.0, 4.0), linear(4.0, 4.0), hand_over=0.1)
    found = eop(costs)
    assert found.ratios == (0.5, 0.5, 0.5)
    assert found.estimate_ms == pytest.approx(3 * (2.0 + 0.2))
    assert in_sequence(costs, found.choice).makespan_ms == pytest.approx(3 * 2.0 + 2 * 0.1)


_MEASURED = (0.25, 0.4, 0.45, 0.5, 0.55, 0.6, 0.75)


def _step(name: str, noise: np.random.Generator | None, dimensions: tuple[str, ...] = ("channels",)) -> PairStep:
    """A step of 10 ms on either processor, whose parts take 1 ms besides."""

    def seen(ms: float) -> float:
        return ms * (1.0 if noise is None else float(noise.uniform(0.85, 1.15)))

    options = [Option(CPU, seen(10.0), 0.0, 1.0), Option(GPU, 0.0, seen(10.0), 0.0)]
    for dimension in dimensions:
        options += [Option(SPLIT, seen(1 + 9 * s), seen(1 + 9 * (1 - s)), s, dimension) for s in _MEASURED]
    return PairStep(name, (), tuple(options))


def test_times_without_noise_stay_as_they_are() -> None:
    costs = PairCosts("m", ("a", "b"), (_step("s", None, ("channels", "rows")),))
    for before, after in zip(costs.steps[0].options, fitted_costs(costs).steps[0].options, strict=True):
        assert (after.kind, after.cpu_share, after.dimension) == (before.kind, before.cpu_share, before.dimension)
        assert after.cpu_ms == pytest.approx(before.cpu_ms, rel=1e-9)
        assert after.gpu_ms == pytest.approx(before.gpu_ms, rel=1e-9)


def test_what_a_plan_promises_is_nearer_to_the_truth() -> None:
    noise = np.random.default_rng(7)
    dimensions = ("channels", "rows", "batch")
    costs = PairCosts("m", ("a", "b"), tuple(_step(f"s{k}", noise, dimensions) for k in range(60)))
    true_ms = 60 * (1 + 9 * 0.5)  # halves are the best split
    as_measured, as_fitted = (outcome(c).timeline.makespan_ms for c in (costs, fitted_costs(costs)))
    assert as_measured < true_ms, "the luckiest times"
    assert abs(as_fitted - true_ms) < abs(as_measured - true_ms)


def test_a_step_that_one_processor_refuses_keeps_its_time() -> None:
    step = PairStep("s", (), (Option(CPU, 10.0, 0.0, 1.0), Option(SPLIT, 5.0, 6.0, 0.5, "rows")))
    whole, split = fitted_costs(PairCosts("m", ("a", "b"), (step,))).steps[0].options
    assert whole.cpu_ms == 10.0
    assert split.gpu_ms == pytest.approx(6.0)
