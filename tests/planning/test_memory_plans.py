"""Properties of streaming plans: sound at every moment, near to the bound, planned fast; their documents; and layouts."""

from __future__ import annotations

import itertools
import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from depth import examples
from edgeplan.errors import FormatError, InfeasibleError, UndecidedError
from edgeplan.graph.kinds import operator_macs
from edgeplan.planning.layout import Buffers, FirstFit, Ints, buffers, least, lowest, max_live
from edgeplan.planning.memory.document import MemoryPlan, memory_document
from edgeplan.planning.memory.planner import algorithm_1, greedy_layout, improved, least_budget, plan_streaming
from edgeplan.planning.memory.quick import NEAR, REPEATS, Mode, PlannedMemory, best, enough_bytes
from edgeplan.planning.memory.workload import (
    Placement,
    Reader,
    Timeline,
    Workload,
    isolated_ms,
    least_bytes,
    period_ms,
    placement,
    simulated,
)
from edgeplan.runtime.lowering import lower
from edgeplan.zoo.convolutional import resnet, vgg
from edgeplan.zoo.family import Builder, Choices

_FLOAT = 4
_SLICE = 2 << 20  # no slice of weights is larger


def _published(builder: Builder, macs_per_ms: float, bytes_per_ms: float = 25e6) -> Workload:
    """A network of the zoo: weights in slices, tensors from the step that writes them until the last that reads them."""
    graph = builder(Choices(), "published")
    compute, weights, spans = list[float](), list[int](), {name: [0, 1] for name in graph.inputs}
    for step in lower(graph).steps:
        spans |= {name: [len(compute), 0] for name in step.outputs}
        macs = sum(operator_macs(graph, graph.by_name[name]) for name in step.members)
        size = sum(_FLOAT * math.prod(graph.shape(name)) for name in step.weights.values())
        slices = max(1, -(-size // _SLICE))
        ms = max(macs / macs_per_ms, size / bytes_per_ms)  # fully connected: bound by memory
        compute += [ms / slices] * slices
        weights += [-(-size // slices // 64) * 64] * slices
        for name in (*step.reads, *step.outputs):
            spans[name][1] = len(compute)
    rows = np.array(list(spans.values()), dtype=np.int64)
    sizes = [-(-_FLOAT * math.prod(graph.shape(name)) // 64) * 64 for name in spans]
    alive = buffers(rows[:, 0], rows[:, 1], sizes, np.full(len(rows), 64))
    return Workload(np.array(compute), np.array(weights, dtype=np.int64), alive, weight_alignment=64)


@st.composite
def workloads(draw: st.DrawFn, steps: int = 12, tensors: int = 12, largest: int = 20) -> Workload:
    """Any workload: tensors that begin and end anywhere, steps with and without weights."""
    n = draw(st.integers(1, steps))
    compute = draw(st.lists(st.floats(0, 5), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, largest), min_size=n, max_size=n))
    spans = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(0, largest)), max_size=tensors))
    rows = np.array([(begin, min(begin + length, n), size) for begin, length, size in spans], dtype=np.int64).reshape(-1, 3)
    alignment = draw(st.sampled_from([1, 1, 4]))
    alive = buffers(rows[:, 0], rows[:, 1], rows[:, 2], np.full(len(rows), draw(st.sampled_from([1, 1, 2]))))
    return Workload(np.array(compute), np.array(weights, dtype=np.int64), alive, weight_alignment=alignment)


def assert_sound(workload: Workload, placement: Placement, timeline: Timeline, budget: int) -> None:
    """Nothing overlaps at any time, is used before it is loaded, or is out of the arena."""
    tensors, inferences = workload.tensors, len(timeline.step_end)
    held = []  # what, from when to when (ms), from address to address
    for m in range(inferences):
        for t in range(len(tensors)):
            since, until = timeline.step_start[m, tensors.lower[t]], timeline.step_end[m, tensors.upper[t] - 1]
            low = int(placement.tensor_offset[t])
            assert low % tensors.alignment[t] == 0
            held.append((("tensor", m, t), since, until, low, low + int(tensors.size[t])))
        for k in np.flatnonzero(workload.weight_bytes):
            low = int(placement.weight_offset[k])
            assert low >= 0
            assert low % workload.weight_alignment == 0
            since, until = timeline.load_start[m, k], timeline.step_end[m, k]
            assert timeline.load_end[m, k] <= timeline.step_start[m, k] + 1e-9
            if placement.stays[k]:
                since, until = 0.0, timeline.step_end[-1, -1]
                if m:
                    continue
            held.append((("weights", m, k), since, until, low, low + int(workload.weight_bytes[k])))
    for at, (what, since, until, low, high) in enumerate(held):
        assert 0 <= low <= high <= placement.height <= budget
        for other, other_since, other_until, other_low, other_high in held[:at]:
            apart = until <= other_since + 1e-9 or other_until <= since + 1e-9 or high <= other_low or other_high <= low
            assert apart, f"{what} and {other} share memory"
    assert (np.diff(timeline.step_start.ravel()) >= 0).all()


_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
_readers = st.builds(
    Reader, st.floats(0.2, 40), st.integers(1, 3), st.sampled_from([0.0, 0.5, 3.0]), st.sampled_from([1, 4, 1000])
)
#: At about 205 and 380 ms.
_NETWORKS = {"resnet152": _published(partial(resnet, depth=152), 56e6), "vgg19": _published(partial(vgg, depth=19), 54e6)}
_MIB = 1 << 20

_WORK = 500  # steps placed in search of a better layout


def _bound(workload: Workload, reader: Reader, budget: int, mode: Mode) -> float:
    return (isolated_ms if mode is Mode.isolated else period_ms)(workload, reader, budget)


def _run(workload: Workload, reader: Reader, planned: PlannedMemory) -> Timeline:
    return simulated(workload, reader, planned.placement, 1 if planned.mode is Mode.isolated else REPEATS)


@settings(_quick, max_examples=examples(150))
@given(workload=workloads(), reader=_readers, mode=st.sampled_from(Mode), extra=st.integers(0, 60))
def test_every_plan_is_sound_and_not_below_its_bound(workload: Workload, reader: Reader, mode: Mode, extra: int) -> None:
    known = least_budget(workload)
    assert known.height is not None
    budget = known.height + extra
    planned = plan_streaming(workload, reader, budget, mode)
    timeline = _run(workload, reader, planned)
    assert_sound(workload, planned.placement, timeline, budget)
    simulated = timeline.latency_ms if mode is Mode.isolated else timeline.period_ms
    assert simulated >= _bound(workload, reader, budget, mode) * (1 - 1e-9)
    assert planned.predicted_ms == pytest.approx(simulated)
    assert planned.lower_bound_ms >= workload.compute_ms.sum() * (1 - 1e-9)
    period = period_ms(workload, reader, budget)
    assert all(period_ms(workload, reader, budget, stride) <= period * (1 + 1e-12) for stride in (2, 3, 5)), "fewer bound less"


@settings(_quick, max_examples=examples(100))
@given(workload=workloads(), short=st.integers(1, 10))
def test_a_budget_below_the_least_is_refused_and_the_least_is_enough(workload: Workload, short: int) -> None:
    known = least_budget(workload)
    assert known.height is not None
    assume(known.proven and known.height - short >= 0)
    with pytest.raises(InfeasibleError, match=f"the least is {known.height} bytes"):
        plan_streaming(workload, Reader(1.0), known.height - short)


@settings(_quick, max_examples=examples(100))
@given(workload=workloads(), reader=_readers, extra=st.integers(0, 60))
def test_weights_are_loaded_again_as_early_as_their_memory_is_free(workload: Workload, reader: Reader, extra: int) -> None:
    offsets = greedy_layout(workload) if len(workload.tensors) else np.zeros(0, dtype=np.int64)
    found = best(workload, reader, least_bytes(workload) + extra, Mode.back_to_back, [offsets])
    assume(found is not None)
    assert found is not None
    names = tuple(map(str, range(workload.steps))), tuple(map(str, range(len(workload.tensors))))
    made = memory_document(found, workload, reader, *names)
    assert shared_memory(made) is None
    assert made.arena_bytes <= made.budget_bytes
    raw = made.model_dump(mode="json")
    early = [k for k, again in enumerate(raw["again"]) if again > k]
    assume(early)
    for k in early:
        for again in range(k, raw["again"][k]):
            changed = raw | {"again": [*raw["again"][:k], again, *raw["again"][k + 1 :]]}
            assert shared_memory(MemoryPlan.model_validate_json(json.dumps(changed))) is not None


@settings(_quick, max_examples=examples(100))
@given(workload=workloads(), reader=_readers, extra=st.integers(0, 60))
def test_algorithm_1_is_sound(workload: Workload, reader: Reader, extra: int) -> None:
    budget = least_bytes(workload) + extra
    placed = algorithm_1(workload, budget)
    assume(placed is not None)
    assert placed is not None
    timeline = simulated(workload, reader, placed, 3)
    assert_sound(workload, placed, timeline, budget)
    assert timeline.latency_ms >= isolated_ms(workload, reader, budget) * (1 - 1e-9)


@settings(_quick, max_examples=examples(40))
@given(workload=workloads(steps=3, tensors=2, largest=3), reader=_readers, extra=st.integers(0, 2))
def test_no_address_at_all_beats_the_bound(workload: Workload, reader: Reader, extra: int) -> None:
    budget = least_bytes(workload) + extra
    best = _optimum(workload, reader, budget)
    assert best >= isolated_ms(workload, reader, budget) * (1 - 1e-9)
    try:
        planned = plan_streaming(workload, reader, budget)
    except (InfeasibleError, UndecidedError):  # the latter where alignment alone is in the way
        assert math.isinf(best)
    else:
        assert planned.predicted_ms >= best * (1 - 1e-9)


def _optimum(workload: Workload, reader: Reader, budget: int) -> float:
    """The least latency over all addresses, each load as early as its place is free."""
    tensors, n = workload.tensors, workload.steps
    places = [range(0, budget - int(size) + 1, int(unit)) for size, unit in zip(tensors.size, tensors.alignment, strict=True)]
    steps = [range(0, budget - int(w) + 1, workload.weight_alignment) if w else (-1,) for w in workload.weight_bytes]
    blocks = [(int(a), int(b), int(s)) for a, b, s in zip(tensors.lower, tensors.upper, tensors.size, strict=True)]
    blocks += [(k, k + 1, int(w)) for k, w in enumerate(workload.weight_bytes)]
    best = math.inf
    for where in itertools.product(*places, *steps):
        held = [(*block, at) for block, at in zip(blocks, where, strict=True) if block[2] and at >= 0]
        shares = [(a, b) for a, b in itertools.combinations(held, 2) if a[3] < b[3] + b[2] and b[3] < a[3] + a[2]]
        if any(a[0] < b[1] and b[0] < a[1] for a, b in shares):
            continue
        after = np.full(n, -1, dtype=np.int64)
        for k in range(n):
            low, size = where[len(tensors) + k], int(workload.weight_bytes[k])
            beside = [b for b in held if low >= 0 and b[1] <= k and b[3] < low + size and low < b[3] + b[2]]
            after[k] = max((b[1] - 1 for b in beside), default=-1)
        # The step before is the latest that a load can wait for, and waiting no longer than needed is best in order.
        weights = np.array(where[len(tensors) :], dtype=np.int64)
        made = placement(workload, np.array(where[: len(tensors)], dtype=np.int64), weights, np.maximum.accumulate(after))
        best = min(best, simulated(workload, reader, made).latency_ms)
    return best


@pytest.mark.parametrize("name", _NETWORKS)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("slower", [1, 3])
def test_the_gap_to_the_bound_is_small_on_published_networks(name: str, lanes: int, slower: int) -> None:
    workload = _NETWORKS[name]
    workload = Workload(workload.compute_ms * slower, workload.weight_bytes, workload.tensors, workload.weight_alignment)
    known = least_budget(workload).height
    assert known is not None
    gaps = {}
    for budget in [known, *(mib * _MIB for mib in (27, 35, 52, 108, 209, 269) if mib * _MIB > known)]:
        planned = plan_streaming(workload, Reader(2.6e6, lanes), budget)
        assert_sound(workload, planned.placement, _run(workload, Reader(2.6e6, lanes), planned), budget)
        gaps[budget // _MIB] = round(100 * planned.gap, 2)
    assert max(gaps.values()) <= 2.0, gaps


@pytest.mark.parametrize("name", _NETWORKS)
def test_plans_made_again_are_as_near_to_the_bound(name: str) -> None:
    workload, reader = _NETWORKS[name], Reader(2.6e6, 2)
    for mib, mode in itertools.product((30, 54, 108, 269), Mode):
        again = best(workload, reader, mib * _MIB, mode, [greedy_layout(workload)], again=True)
        first = plan_streaming(workload, reader, mib * _MIB, mode)
        assert again is not None
        assert_sound(workload, again.placement, _run(workload, reader, again), mib * _MIB)
        assert again.predicted_ms <= 1.02 * first.predicted_ms


@pytest.mark.parametrize("name", _NETWORKS)
def test_back_to_back_keeps_what_fits_and_beats_algorithm_1(name: str) -> None:
    workload, reader = _NETWORKS[name], Reader(1.3e6, 2)
    for mib in (54, 108, 209):
        planned = plan_streaming(workload, reader, mib * _MIB, Mode.back_to_back)
        baseline = algorithm_1(workload, mib * _MIB)
        assert baseline is not None
        theirs = simulated(workload, reader, baseline, REPEATS).period_ms
        assert planned.predicted_ms <= theirs * (1 + NEAR) + 1e-9  # of plans as fast the one that reads least is taken
        kept = int(workload.weight_bytes[planned.placement.stays].sum())
        assert kept <= mib * _MIB - int(workload.live_bytes.max())
        assert planned.loaded_bytes == int(workload.weight_bytes.sum()) - kept


@settings(_quick, max_examples=100)
@given(workload=workloads(), reader=_readers, mode=st.sampled_from(Mode), more=st.integers(0, 10_000))
def test_a_budget_is_used_no_further_than_there_is_to_keep(workload: Workload, reader: Reader, mode: Mode, more: int) -> None:
    enough = enough_bytes(workload, greedy_layout(workload))
    planned = plan_streaming(workload, reader, enough + more, mode)
    assert planned.placement.height <= enough
    assert planned.loaded_bytes == 0
    assert planned.predicted_ms == pytest.approx(_bound(workload, reader, enough + more, mode))
    assert_sound(workload, planned.placement, _run(workload, reader, planned), enough)


@settings(_quick, max_examples=examples(60))
@given(workload=workloads(), reader=_readers, mode=st.sampled_from(Mode), extra=st.integers(0, 30))
def test_a_search_for_layouts_is_sound_no_slower_and_finds_the_same_again(
    workload: Workload, reader: Reader, mode: Mode, extra: int
) -> None:
    offsets = greedy_layout(workload) if len(workload.tensors) else np.zeros(0, dtype=np.int64)
    budget = least_bytes(workload) + extra
    first = best(workload, reader, budget, mode, [offsets])
    assume(first is not None)
    assert first is not None
    found, again = (improved(workload, reader, first, _WORK) for _ in range(2))
    assert found.predicted_ms <= first.predicted_ms
    assert found.predicted_ms == again.predicted_ms
    assert_sound(workload, found.placement, _run(workload, reader, found), budget)


@pytest.mark.parametrize("mode", Mode)
def test_a_document_is_read_as_it_was_written(mode: Mode) -> None:
    compute, weights = np.array([1.0, 2.0, 0.5, 1.0]), np.array([8, 0, 12, 8], dtype=np.int64)
    workload = Workload(compute, weights, buffers([0, 1, 2], [2, 3, 4], [4, 6, 4]), weight_alignment=2)
    planned = plan_streaming(workload, Reader(10.0, 2), 24, mode)
    made = memory_document(planned, workload, Reader(10.0, 2), ("a", "b", "c", "d"), ("x", "y", "z"))
    assert MemoryPlan.model_validate_json(made.model_dump_json()) == made
    assert made.mode == mode
    assert made.gap >= 0
    for change in ({"format_version": 2}, {"more": 1}, {"lanes": 0}):
        with pytest.raises(ValidationError, match=next(iter(change))):
            MemoryPlan.model_validate_json(json.dumps(json.loads(made.model_dump_json()) | change))


@st.composite
def problems(draw: st.DrawFn, most: int = 14, largest: int = 9, alignments: tuple[int, ...] = (1, 1, 2, 4)) -> Buffers:
    rows = draw(
        st.lists(
            st.tuples(st.integers(-3, 12), st.integers(1, 8), st.integers(0, largest), st.sampled_from(alignments)),
            min_size=1,
            max_size=most,
        )
    )
    columns = np.array(rows, dtype=np.int64)
    return buffers(columns[:, 0], columns[:, 0] + columns[:, 1], columns[:, 2], columns[:, 3])


def assert_laid_out(all_of: Buffers, offsets: np.ndarray, capacity: int) -> None:
    assert (offsets >= 0).all()
    assert (offsets % all_of.alignment == 0).all()
    assert (offsets + all_of.size).max() <= capacity
    assert overlapping(all_of, offsets) is None


def _least_by_trying(all_of: Buffers) -> int:
    """The least height over all orders of placing each at its lowest address."""
    made, shown = FirstFit(all_of), np.flatnonzero(all_of.size)
    rest = np.flatnonzero(all_of.size == 0).tolist()
    found = [made.laid_out([*order, *rest]) for order in itertools.permutations(shown.tolist())]
    return min(int((offsets + all_of.size).max()) for offsets in found if offsets is not None)


@settings(_quick, max_examples=examples(200))
@given(problem=problems(), ends=st.data())
def test_layouts_are_valid_and_the_least_is_no_higher_than_greedy(problem: Buffers, ends: st.DataObject) -> None:
    found = least(problem, work=100)
    assert_laid_out(problem, found.offsets, found.height)
    assert found.height >= found.lower_bound >= max_live(problem)
    for offsets in FirstFit(problem).greedy():
        assert_laid_out(problem, offsets, int((offsets + problem.size).max()))
        assert (offsets + problem.size).max() >= (lowest(problem) + problem.size).max() >= found.height
    order = ends.draw(st.permutations(range(len(problem))))
    upper = ends.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem)))
    made = FirstFit(problem).laid_out(order, upper, found.height)
    if made is not None:
        assert_laid_out(problem, made, found.height)


@settings(_quick, max_examples=examples(150))
@given(problem=problems(most=6))
def test_what_is_proven_agrees_with_trying_everything(problem: Buffers) -> None:
    by_trying = _least_by_trying(problem)
    found = least(problem)
    assert found.height == by_trying  # random orders of so few buffers are all of them
    assert not found.proven or found.lower_bound == by_trying


@pytest.mark.parametrize("seed", range(12))
def test_random_orders_go_below_the_greedy_ones_to_the_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    problem = buffers([0], [1], [1])
    while (lowest(problem) + problem.size).max() == max_live(problem):
        lower = draw.integers(0, 30, 20)
        problem = buffers(lower, lower + draw.integers(1, 12, 20), draw.integers(1, 40, 20))
    found = least(problem)
    assert found.height < (lowest(problem) + problem.size).max()
    assert found.height == least(problem).height  # seeded


@pytest.mark.parametrize("lowers", [(0, 1), (0, 0)])
def test_alignments_without_a_common_multiple_of_64_bits_are_laid_out(lowers: tuple[int, int]) -> None:
    problem = buffers(lowers, (2, 3), (5, 5), (2199023255551, 2199023255550))
    found = least(problem)
    assert found.height == 2199023255555
    assert_laid_out(problem, found.offsets, found.height)


def test_buffers_that_make_no_sense_are_refused() -> None:
    """Those who call `least` themselves, as the command line advises, may give any."""
    for columns, told in (
        (([1], [1], [1], [1]), "upper"), (([0], [1], [-1], [1]), "size: neg"), (([0], [1], [1], [0]), "alignment: below"),
        (([0, 1], [1], [1], [1]), "length"), (([0], [2**62], [1], [1]), "not within"),
        (([0], [1], [1], [2**42]), "alignment: above"), (([0] * 3, [1] * 3, [2**60] * 3), "together"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=told):
            buffers(*columns)


def overlapping(all_of: Buffers, offsets: Ints) -> tuple[int, int] | None:
    """Two buffers that live at the same time and share memory; None if there are none."""
    shown = np.flatnonzero(all_of.size)
    lower, upper, low = all_of.lower[shown], all_of.upper[shown], offsets[shown]
    high = low + all_of.size[shown]
    both_live = (lower < upper[:, None]) & (lower[:, None] < upper)
    found = np.argwhere(np.triu(both_live & (low < high[:, None]) & (low[:, None] < high), 1))
    return (int(shown[found[0, 0]]), int(shown[found[0, 1]])) if len(found) else None


def shared_memory(plan: MemoryPlan) -> tuple[str, str] | None:
    """Names of two things of a plan that live at the same time and share memory; None if there are none."""
    found = list(plan.held())
    assert all(held.offset + held.size <= plan.arena_bytes for held in found)
    alive = buffers([held.lower for held in found], [held.upper for held in found], [held.size for held in found])
    both = overlapping(alive, np.array([held.offset for held in found], dtype=np.int64))
    return None if both is None else (found[both[0]].name, found[both[1]].name)
