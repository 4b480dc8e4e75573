"""Properties of streaming plans: sound at every moment, near to the bound, planned fast; and their documents."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from depth import examples
from edgeplan.errors import InfeasibleError, UndecidedError
from edgeplan.planning.layout import buffers
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
from layout_checks import assert_consistent, shared_memory

_FLOAT = 4
_SLICE = 2 << 20  # no slice of weights is larger


class Network:
    """Steps and tensors of a network, added in order of execution."""

    def __init__(self, macs_per_ms: float, bytes_per_ms: float) -> None:
        self.macs_per_ms, self.bytes_per_ms = macs_per_ms, bytes_per_ms
        self.compute: list[float] = []
        self.weights: list[int] = []
        self.tensors: list[list[int]] = []  # begin, end, bytes

    def tensor(self, count: int) -> int:
        """A tensor of so many values that begins with the next step."""
        self.tensors.append([len(self.compute), len(self.compute) + 1, _FLOAT * count])
        return len(self.tensors) - 1

    def layer(self, macs: int, weights: int, inputs: list[int]) -> None:
        """A layer, in slices; its output has been added before."""
        slices = max(1, -(-_FLOAT * weights // _SLICE))
        ms = max(macs / self.macs_per_ms, _FLOAT * weights / self.bytes_per_ms)  # fully connected: bound by memory
        for part in range(slices):
            self.compute.append(ms / slices)
            self.weights.append(-(-_FLOAT * weights // slices // 64) * 64 if part or weights else 0)
        for index in [*inputs, len(self.tensors) - 1]:
            self.tensors[index][1] = len(self.compute)

    def workload(self) -> Workload:
        rows = np.array(self.tensors, dtype=np.int64)
        aligned = -(-rows[:, 2] // 64) * 64
        alive = buffers(rows[:, 0], rows[:, 1], aligned, np.full(len(rows), 64))
        return Workload(np.array(self.compute), np.array(self.weights, dtype=np.int64), alive, weight_alignment=64)

    def convolution(self, x: int, channels: int, out: int, side: int, kernel: int, extra: tuple[int, ...] = ()) -> int:
        """Returns the output; `side` is of the output."""
        y = self.tensor(out * side * side)
        weights = channels * out * kernel * kernel
        self.layer(weights * side * side, weights + out, [x, *extra])
        return y


def vgg19() -> Workload:
    """VGG-19 (arXiv 1409.1556, table 1, column E) at about 380 ms."""
    network = Network(macs_per_ms=54e6, bytes_per_ms=25e6)
    side, channels = 224, 3
    x = network.tensor(channels * side * side)
    for out, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(convolutions):
            x = network.convolution(x, channels, out, side, 3)
            channels = out
        side //= 2
        y = network.tensor(channels * side * side)
        network.layer(0, 0, [x])
        x = y
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        y = network.tensor(outputs)
        network.layer(inputs * outputs, inputs * outputs + outputs, [x])
        x = y
    return network.workload()


def resnet152() -> Workload:
    """ResNet-152 (arXiv 1512.03385, table 1) at about 205 ms."""
    network = Network(macs_per_ms=56e6, bytes_per_ms=25e6)
    x = network.tensor(3 * 224 * 224)
    x = network.convolution(x, 3, 64, 112, 7)
    y = network.tensor(64 * 56 * 56)
    network.layer(0, 0, [x])
    x, channels = y, 64
    for width, blocks, side in ((64, 3, 56), (128, 8, 28), (256, 36, 14), (512, 3, 7)):
        for block in range(blocks):
            shortcut = x if block else network.convolution(x, channels, 4 * width, side, 1)
            first_side = 2 * side if block == 0 and width > 64 else side
            y = network.convolution(x, channels, width, first_side, 1)
            y = network.convolution(y, width, width, side, 3)
            x = network.convolution(y, width, 4 * width, side, 1, (shortcut,))
            channels = 4 * width
    y = network.tensor(2048)
    network.layer(0, 0, [x])
    network.tensor(1000)
    network.layer(2048 * 1000, 2048 * 1000 + 1000, [y])
    return network.workload()


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
_NETWORKS = {"resnet152": resnet152(), "vgg19": vgg19()}
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
    assert_consistent(made)
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
        again, first = (
            best(workload, reader, mib * _MIB, mode, [greedy_layout(workload)], again=True),
            plan_streaming(workload, reader, mib * _MIB, mode),
        )
        assert again is not None
        assert_sound(workload, again.placement, _run(workload, reader, again), mib * _MIB)
        assert again.predicted_ms <= 1.02 * first.predicted_ms


def test_what_fits_is_never_read_again() -> None:
    workload = _NETWORKS["resnet152"]
    everything = int(workload.weight_bytes.sum() + workload.live_bytes.max()) + 8 * _MIB
    planned = plan_streaming(workload, Reader(2.6e6), everything, Mode.back_to_back)
    assert planned.loaded_bytes == 0
    assert planned.predicted_ms == pytest.approx(workload.compute_ms.sum())


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


@pytest.mark.parametrize("name", list(_NETWORKS))
@pytest.mark.parametrize("mode", list(Mode))
def test_a_generous_budget_costs_no_memory_of_networks(name: str, mode: Mode) -> None:
    workload = _NETWORKS[name]
    enough = enough_bytes(workload, greedy_layout(workload))
    planned = plan_streaming(workload, Reader(1e6), 4 * enough, mode)
    assert planned.placement.height <= enough
    assert planned.predicted_ms == pytest.approx(workload.compute_ms.sum())


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


@settings(_quick, max_examples=examples(60))
@given(workload=workloads(), reader=_readers, extra=st.integers(0, 60), stride=st.integers(2, 5))
def test_fewer_steps_to_count_from_bound_less(workload: Workload, reader: Reader, extra: int, stride: int) -> None:
    budget = least_bytes(workload) + extra
    assert period_ms(workload, reader, budget, stride) <= period_ms(workload, reader, budget) * (1 + 1e-12)


def _made(mode: Mode = Mode.isolated) -> MemoryPlan:
    compute, weights = np.array([1.0, 2.0, 0.5, 1.0]), np.array([8, 0, 12, 8], dtype=np.int64)
    workload = Workload(compute, weights, buffers([0, 1, 2], [2, 3, 4], [4, 6, 4]), weight_alignment=2)
    planned = plan_streaming(workload, Reader(10.0, 2), 24, mode)
    return memory_document(planned, workload, Reader(10.0, 2), ("a", "b", "c", "d"), ("x", "y", "z"))


@pytest.mark.parametrize("mode", Mode)
def test_a_document_is_read_as_it_was_written(mode: Mode) -> None:
    made = _made(mode)
    assert MemoryPlan.model_validate_json(made.model_dump_json()) == made
    assert made.mode == mode
    assert made.arena_bytes <= made.budget_bytes
    assert made.gap >= 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda raw: raw.update(format_version=2), "format_version"),
        (lambda raw: raw.update(more=1), "more"),
        (lambda raw: raw.pop("after"), "after"),
        (lambda raw: raw["tensor_bytes"].__setitem__(0, -1), "tensor_bytes"),
        (lambda raw: raw.update(bytes_per_ms=0.0), "bytes_per_ms"),
        (lambda raw: raw.update(lanes=0), "lanes"),
        (lambda raw: raw.update(steps=[]), "steps"),
    ],
)
def test_a_document_of_another_form_is_refused(change: Any, what: str) -> None:
    raw = json.loads(_made().model_dump_json())
    change(raw)
    with pytest.raises(ValidationError, match=what):
        MemoryPlan.model_validate_json(json.dumps(raw))
