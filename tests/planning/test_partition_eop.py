"""EOP's patterns and algorithms on cases worked out by hand, and costs on fitted patterns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Option, PairCosts, PairStep, in_sequence
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.eop import eop, fitted_costs, fitted_pattern, key_operators, pattern_match, tune
from edgeplan.planning.partition.planner import outcome

SHARES = [k / 16 for k in range(1, 17)]


def costs_of(*operators: tuple[float, float, list[tuple[float, float, float, str]]], hand_over: float = 0.0) -> PairCosts:
    """A chain of operators: whole on the CPU, on the GPU, and splits of (share, cpu, gpu, dimension)."""
    entries: list[dict[str, Any]] = []
    for k, (cpu, gpu, splits) in enumerate(operators):
        options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
        options += [{"on": "split", "cpu_share": r, "cpu_ms": c, "gpu_ms": g, "dimension": d} for r, c, g, d in splits]
        entries.append({"name": f"op{k}", "inputs": [f"op{k - 1}"] if k else [], "options": options})
    head = {"format_version": 1, "model": "m", "cpu_to_gpu_ms": hand_over, "gpu_to_cpu_ms": hand_over}
    return parse_costs(json.dumps({**head, "operators": entries}).encode(), "costs.json")


def linear(cpu: float, gpu: float, dimension: str = "batch") -> tuple[float, float, list[tuple[float, float, float, str]]]:
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
    found = eop(costs_of(linear(3.0, 1.0)))
    assert found.ratios == (0.25,)
    assert found.estimate_ms == pytest.approx(0.75)
    assert in_sequence(costs_of(linear(3.0, 1.0)), found.choice).makespan_ms == pytest.approx(0.75)


def test_the_dimension_of_least_time_is_taken() -> None:
    cpu, gpu, batch = linear(2.0, 2.0, "batch")
    slower = [(r, c + 0.5, g + 0.5, "HW") for r, c, g, _ in batch]
    costs = costs_of((cpu, gpu, batch + slower))
    assert pattern_match(costs, 0).dimension == "batch"
    chosen = costs.steps[0].options[eop(costs).choice[0]]
    assert (chosen.kind, chosen.dimension) == (SPLIT, "batch")


def test_what_communication_costs_more_than_it_gains_stays_whole() -> None:
    # Split in halves 1 of 2 is gained (equation 3), and one hand-over each way paid.
    for hand_over, kinds in ((0.4, [SPLIT]), (0.6, [CPU])):
        costs = costs_of(linear(2.0, 2.0), hand_over=hand_over)
        assert [o.kind for o in costs.chosen(eop(costs).choice)] in (kinds, [GPU] if kinds == [CPU] else kinds)


def test_operators_that_cannot_be_split_run_where_they_are_faster() -> None:
    costs = costs_of((1.0, 2.0, []), (2.0, 1.0, []))
    assert [o.kind for o in costs.chosen(eop(costs).choice)] == [CPU, GPU]


def test_a_constant_operator_is_not_split() -> None:
    constant = (2.0, 2.0, [(r, 2.0, 2.0, "HW") for r in SHARES[:-1]])
    costs = costs_of(constant, hand_over=0.01)
    found = eop(costs)
    assert {p.name for p in found.matched[0].patterns if p is not None} == {"constant"}
    assert costs.chosen(found.choice)[0].kind != SPLIT


def test_key_operators_take_more_than_95_percent() -> None:
    costs = costs_of(linear(90.0, 100.0), linear(3.0, 3.0), linear(5.5, 5.0), linear(2.0, 2.0))
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
    costs = costs_of(*operators, hand_over=0.05)
    before, op = pattern_match(costs, 0), pattern_match(costs, 1)
    apart = float(before.total_ms.min() + op.total_ms.min())
    written, drawn = tune(before, op), tune(before, op, overlapped=True)
    assert written.time_ms == pytest.approx(apart)
    assert drawn.time_ms <= apart + 1e-12


def test_tuning_as_drawn_gives_the_second_operator_more_of_the_gpu() -> None:
    # The first suits the CPU, the second the GPU: as in Figure 5, the first leaves the GPU to the second.
    costs = costs_of(linear(2.0, 4.0), linear(6.0, 2.0))
    before, op = pattern_match(costs, 0), pattern_match(costs, 1)
    drawn = tune(before, op, overlapped=True)
    assert drawn.first > before.total_ms.argmin()
    assert drawn.second < op.total_ms.argmin()
    assert drawn.time_ms < float(before.total_ms.min() + op.total_ms.min())


def test_the_estimate_adds_up_to_the_recursion() -> None:
    costs = costs_of(linear(4.0, 4.0), linear(4.0, 4.0), linear(4.0, 4.0), hand_over=0.1)
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
