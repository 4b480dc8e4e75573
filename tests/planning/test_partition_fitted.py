"""Costs on fitted patterns: exact where there is no noise, and not the luckiest of noisy times."""

from __future__ import annotations

import numpy as np
import pytest

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Option, PairCosts, PairStep
from edgeplan.planning.partition.eop import fitted
from edgeplan.planning.partition.planner import outcome

_SHARES = (0.25, 0.4, 0.45, 0.5, 0.55, 0.6, 0.75)


def _step(name: str, noise: np.random.Generator | None, dimensions: tuple[str, ...] = ("channels",)) -> PairStep:
    """A step of 10 ms on either processor, whose parts take 1 ms besides."""

    def seen(ms: float) -> float:
        return ms * (1.0 if noise is None else float(noise.uniform(0.85, 1.15)))

    options = [Option(CPU, seen(10.0), 0.0, 1.0), Option(GPU, 0.0, seen(10.0), 0.0)]
    for dimension in dimensions:
        options += [Option(SPLIT, seen(1 + 9 * s), seen(1 + 9 * (1 - s)), s, dimension) for s in _SHARES]
    return PairStep(name, (), tuple(options))


def test_times_without_noise_stay_as_they_are() -> None:
    costs = PairCosts("m", ("a", "b"), (_step("s", None, ("channels", "rows")),))
    for before, after in zip(costs.steps[0].options, fitted(costs).steps[0].options, strict=True):
        assert (after.kind, after.cpu_share, after.dimension) == (before.kind, before.cpu_share, before.dimension)
        assert after.cpu_ms == pytest.approx(before.cpu_ms, rel=1e-9)
        assert after.gpu_ms == pytest.approx(before.gpu_ms, rel=1e-9)


def test_what_a_plan_promises_is_nearer_to_the_truth() -> None:
    noise = np.random.default_rng(7)
    dimensions = ("channels", "rows", "batch")
    costs = PairCosts("m", ("a", "b"), tuple(_step(f"s{k}", noise, dimensions) for k in range(60)))
    true_ms = 60 * (1 + 9 * 0.5)  # halves are the best split
    as_measured, as_fitted = (outcome(c).timeline.makespan_ms for c in (costs, fitted(costs)))
    assert as_measured < true_ms, "the luckiest times"
    assert abs(as_fitted - true_ms) < abs(as_measured - true_ms)


def test_a_step_that_one_processor_refuses_keeps_its_time() -> None:
    step = PairStep("s", (), (Option(CPU, 10.0, 0.0, 1.0), Option(SPLIT, 5.0, 6.0, 0.5, "rows")))
    whole, split = fitted(PairCosts("m", ("a", "b"), (step,))).steps[0].options
    assert whole.cpu_ms == 10.0
    assert split.gpu_ms == pytest.approx(6.0)
