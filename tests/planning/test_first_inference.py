"""Plans of a first inference: within the budget at every moment, nothing before its kernel and weights, near to their bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming_workloads import assert_sound, resnet152, workloads

from depth import examples
from edgeplan.planning.joint import bounds
from edgeplan.planning.joint.first import NO_KERNEL, FirstInference, Making, timeline
from edgeplan.planning.joint.search import FirstPlan, plan_first
from edgeplan.planning.layout.buffers import buffers
from edgeplan.planning.memory.bounds import least_bytes
from edgeplan.planning.memory.planner import lowest
from edgeplan.planning.memory.quick import Mode, best
from edgeplan.planning.memory.simulate import Timeline
from edgeplan.planning.memory.workload import Placement, Reader, Workload

_NEAR = 1e-9
GRAPHS = 200  # random ones that bounds are held to brute force on


@st.composite
def problems(draw: st.DrawFn) -> FirstInference:
    """Any steps, with kernels that some of them share."""
    work = draw(workloads(steps=9, tensors=8))
    kernels = draw(st.integers(1, work.steps))
    kernel_of = draw(st.lists(st.integers(NO_KERNEL, kernels - 1), min_size=work.steps, max_size=work.steps))
    making = draw(st.lists(st.floats(0.01, 6), min_size=kernels, max_size=kernels))
    reader = Reader(draw(st.floats(0.5, 40)), draw(st.integers(1, 2)), draw(st.sampled_from([0.0, 0.5])), 1000)
    return FirstInference(work, reader, tuple(kernel_of), tuple(making), beside=draw(st.booleans()))


def made_at(problem: FirstInference, making: Making, found: Timeline) -> dict[int, float]:
    """When each kernel is made at the latest: those of the computing thread fit between its steps."""
    now, made = 0.0, dict[int, float]()
    for kernel in making.beside:
        made[kernel] = now = now + problem.making_ms[kernel]
    for kernel, step in making.own:
        made[kernel] = float(found.step_start[0, step])
    return made


def require_sound(problem: FirstInference, plan: FirstPlan) -> None:
    """No moment holds more than the budget, and no step begins before its kernel is made and its weights are there."""
    found = timeline(problem, plan.placement, plan.making)
    assert_sound(problem.workload, plan.placement, found, plan.budget)
    starts, ends = found.step_start[0], found.step_end[0]
    made = made_at(problem, plan.making, found)
    assert set(made) == set(problem.first_use)
    assert len(plan.making.own) + len(plan.making.beside) == len(made)
    for step, kernel in enumerate(problem.kernel_of):
        if kernel != NO_KERNEL:
            assert made[kernel] <= starts[step] + _NEAR
    for step in range(problem.workload.steps):  # the computing thread does one thing at a time
        own = sum(problem.making_ms[kernel] for kernel, at in plan.making.own if at == step)
        assert starts[step] >= (ends[step - 1] if step else 0.0) + own - _NEAR
    moments = sorted({*starts.tolist(), *found.load_start[0].tolist()})
    tensors, weights = problem.workload.tensors, problem.workload.weight_bytes
    for now in moments:
        held = sum(int(weights[k]) for k in range(len(weights)) if weights[k] and found.load_start[0, k] <= now < ends[k])
        spans = zip(tensors.lower, tensors.upper, tensors.size, strict=True)
        held += sum(int(size) for low, high, size in spans if starts[low] <= now < ends[high - 1])
        assert held <= plan.budget


@settings(deadline=None, max_examples=examples(200))
@given(problems(), st.floats(1.0, 3.0))
def test_a_simulated_run_never_holds_more_than_its_budget(problem: FirstInference, room: float) -> None:
    budget = int(room * least_bytes(problem.workload)) + 8
    plan = plan_first(problem, budget, [lowest(problem.workload)])
    if plan is None:
        return
    require_sound(problem, plan)
    found = timeline(problem, plan.placement, plan.making).latency_ms
    assert found == pytest.approx(plan.makespan_ms)
    assert bounds.first_ms(problem, budget) <= found * (1 + _NEAR)


@settings(deadline=None, max_examples=examples(100))
@given(problems(), st.floats(1.0, 3.0))
def test_making_kernels_meanwhile_is_no_slower_than_before(problem: FirstInference, room: float) -> None:
    work = problem.workload
    budget = int(room * least_bytes(work)) + 8
    plan = plan_first(problem, budget, [lowest(work)])
    alone = best(work, problem.reader, budget, Mode.isolated, [lowest(work)])
    if plan is None or alone is None:
        return
    first = [(kernel, 0) for kernel in problem.first_use]
    before = timeline(problem, plan.placement, Making(tuple(first), ())).latency_ms
    assert plan.makespan_ms <= before * (1 + _NEAR)


def _small(seed: int) -> tuple[FirstInference, int]:
    """A graph of at most seven steps and three kernels, and a budget that something fits in."""
    draw = random.Random(seed)  # noqa: S311  a seeded one
    n = draw.randint(1, 7)
    spans = [(low, draw.randint(low + 1, n), draw.randint(0, 9)) for low in range(n)]
    rows = np.array(spans, dtype=np.int64)
    alive = buffers(rows[:, 0], rows[:, 1], rows[:, 2], np.ones(n, dtype=np.int64))
    weights = np.array([draw.choice([0, draw.randint(1, 12)]) for _ in range(n)], dtype=np.int64)
    work = Workload(np.array([draw.uniform(0, 4) for _ in range(n)]), weights, alive)
    making = tuple(draw.uniform(0.1, 5) for _ in range(draw.randint(1, 3)))
    kernel_of = tuple(draw.randrange(NO_KERNEL, len(making)) for _ in range(n))
    reader = Reader(draw.uniform(0.5, 8), 1, draw.choice([0.0, 0.3]), 1)  # no load waits for one that is read with it
    problem = FirstInference(work, reader, kernel_of, making, beside=draw.random() < 0.7)
    least = least_bytes(work)
    return problem, max(1, least + draw.randint(0, least))


def _earliest(work: Workload, budget: int) -> Placement | None:
    """Loads as early as any plan can begin them: of a later load all earlier ones are in memory, too, so none gives way."""
    live, weights, n = work.live_bytes.tolist(), work.weight_bytes.tolist(), work.steps
    held = list(live)  # of each step, with the weights that are there or on their way while it runs
    after, least = [-1] * n, -1
    for k in range(n):
        if not weights[k]:
            continue
        while least < k and any(held[i] + weights[k] > budget for i in range(least + 1, k + 1)):
            least += 1
        if least >= k:
            return None
        after[k] = least
        for i in range(least + 1, k + 1):
            held[i] += weights[k]
    offsets = np.where(work.weight_bytes > 0, 0, -1)
    zeros = np.zeros(len(work.tensors), dtype=np.int64)
    again = np.where(offsets >= 0, n - 1, -1)  # nobody asks for a second inference
    return Placement(zeros, offsets, np.array(after, dtype=np.int64), again, budget)


def _makings(problem: FirstInference) -> Iterator[Making]:
    """Every order of the kernels, on both threads."""
    kernels = list(problem.first_use)
    for count in range(len(kernels) + 1) if problem.beside else [0]:
        for beside in itertools.permutations(kernels, count):
            rest = [kernel for kernel in kernels if kernel not in beside]
            for steps in itertools.product(*(range(problem.first_use[kernel] + 1) for kernel in rest)):
                yield Making(tuple(zip(rest, steps, strict=True)), beside)


def test_no_order_of_kernels_and_loads_is_faster_than_the_bound() -> None:
    near, bounded = 0, 0
    for seed in range(GRAPHS):
        problem, budget = _small(seed)
        if (placed := _earliest(problem.workload, budget)) is None:
            continue
        fastest = min(timeline(problem, placed, making).latency_ms for making in _makings(problem))
        bound = bounds.first_ms(problem, budget)
        assert bound <= fastest * (1 + _NEAR), seed
        bounded += 1
        if (plan := plan_first(problem, budget, [lowest(problem.workload)])) is not None:
            require_sound(problem, plan)
            assert plan.makespan_ms >= fastest * (1 - _NEAR), seed
            near += plan.makespan_ms <= 1.02 * fastest
    assert bounded > GRAPHS // 2
    assert near > bounded // 2


def test_a_network_is_planned_near_to_its_bound() -> None:
    work = resnet152()
    kernel_of = tuple(int(size) % 40 for size in np.unique(work.compute_ms, return_inverse=True)[1])
    problem = FirstInference(work, Reader(2e6, 2, 0.05), kernel_of, tuple([1.5] * 40))
    for share in (0.2, 0.6):
        budget = int(share * work.weight_bytes.sum()) + least_bytes(work)
        plan = plan_first(problem, budget, [lowest(work)])
        assert plan is not None
        require_sound(problem, plan)
        assert plan.gap < 0.05


def test_a_budget_below_the_least_has_no_bound_and_no_plan() -> None:
    problem, _ = _small(3)
    least = least_bytes(problem.workload)
    assert bounds.first_ms(problem, least - 1) == float("inf")
    assert plan_first(problem, least - 1, [lowest(problem.workload)]) is None
