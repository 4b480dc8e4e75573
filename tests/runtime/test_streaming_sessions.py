"""Programs that stream their weights: outputs are the same whatever the cut, the budget and the mode; halves are widened."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import made, node, values, write
from onnx import TensorProto, helper, numpy_helper
from streamed_models import MODELS, Streamed, outputs_of, ran, streamed

from depth import MANY, by_day, examples
from edgeplan import native
from edgeplan.chapters.memory.folders import PlanWriter, RunCores
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import InfeasibleError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.profiling.streaming import on_demand
from edgeplan.runtime.bands import Region, banded, live_bytes, possible, recomputed, regions_by_peak
from edgeplan.runtime.creation import PAGE_BYTES
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import TapedProgram
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.streaming import weights_file
from edgeplan.runtime.streaming.build import build
from edgeplan.runtime.streaming.schedules import BF16, F16, Stored
from edgeplan.runtime.streaming.weights_file import halvable, rounded, stay_finite

_ARE_CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and weights of this module lie."""
    return tmp_path_factory.mktemp("streamed")


def require_right(found: Streamed, outputs: Mapping[str, bytes]) -> None:
    """Outputs are ONNX Runtime's but for rounding."""
    for name, expected in onnxruntime_reference(found.model, found.inputs).items():
        difference = np.abs(outputs_of(outputs, found)[name] - expected).max()
        assert difference <= _ARE_CLOSE * np.abs(expected).max(), name


@pytest.mark.parametrize("limit", by_day([8192, 1 << 40, 1]))
@pytest.mark.parametrize("name", MODELS)
def test_every_budget_gives_the_same_bits(dnnl: Dnnl, folder: Path, name: str, limit: int) -> None:
    found = streamed(dnnl, name, folder, limit)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    require_right(found, expected)
    lowest = least_bytes(found.workload)
    for share in (1.0, 1.3, 4.0):
        for mode in Mode:
            try:
                schedule = found.planned(int(share * lowest) + 8192, mode)
            except InfeasibleError:
                continue
            assert schedule["arena_bytes"] <= int(share * lowest) + 8192
            with found.session(dnnl, schedule) as session:
                assert ran(session, found.inputs, 3) == [expected] * 3, (share, mode)


def test_rows_of_a_table_are_read_from_the_file_as_their_indices_say(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "tokens", folder, 8192)
    table = found.built.tables[0]
    assert table.size == 4 * 523 * 64
    assert least_bytes(found.workload) < table.size / 2
    with found.session(dnnl, found.planned(table.size, Mode.back_to_back)) as session:
        for tokens in ([522, 0, 77, 522, 1], [-1, -523, 77, -446, 5]):
            inputs = {"input_ids": np.array([tokens], dtype=np.int64)}
            expected = onnxruntime_reference(found.model, inputs)["logits"]
            given = session.run(inputs)["logits"]
            assert np.abs(given - expected).max() <= _ARE_CLOSE * np.abs(expected).max()
        for outside in (523, -524):
            with pytest.raises(ModelError, match="lies outside the axis"):
                session.run({"input_ids": np.array([[0, 1, outside, 2, 3]], dtype=np.int64)})
        assert session.run(inputs)["logits"].tobytes() == given.tobytes()


def test_smaller_parts_need_less_memory(dnnl: Dnnl, folder: Path) -> None:
    whole, finest = streamed(dnnl, "plain", folder, 1 << 40), streamed(dnnl, "plain", folder, 1)
    assert len(finest.built.program.steps) > len(whole.built.program.steps)
    assert least_bytes(finest.workload) < 0.8 * least_bytes(whole.workload)


def test_equal_steps_share_a_kernel(dnnl: Dnnl, folder: Path) -> None:
    program = streamed(dnnl, "plain", folder, 1).built.program
    assert len(program.kernels) < 0.7 * len(program.steps)


@pytest.mark.parametrize("name", by_day(["residual", "plain"]))
def test_bands_compute_the_same(dnnl: Dnnl, folder: Path, name: str) -> None:
    lowered = streamed(dnnl, name, folder, 1 << 40).lowered
    tried = 0
    for first in range(len(lowered.steps)):
        for last in {first + 1, first + 3, first + 5}:
            if last >= len(lowered.steps) or not possible(lowered, first, last):
                continue
            height = lowered.shapes[lowered.steps[last].outputs[0]][2]
            for rows in {3, max(1, height // 2)} if MANY else {3}:
                found = streamed(dnnl, name, folder, 1 << 40, (Region(first, last, rows),))
                with found.session(dnnl, found.planned(least_bytes(found.workload) + (1 << 16), Mode.isolated)) as session:
                    require_right(found, ran(session, found.inputs)[0])
                tried += 1
    assert tried > 6


def test_weights_that_two_steps_read_are_stored_once(dnnl: Dnnl, tmp_path: Path) -> None:
    nodes = [node("MatMul", f"{before} w", after) for before, after in pairwise(("x", "a", "y"))]
    write(made(nodes, {"x": (4, 64)}, {"w": values(64, 64)}), tmp_path / "tied.onnx")
    for limit in (1 << 40, 8192):
        found = streamed(dnnl, "tied", tmp_path, limit)
        program = found.built.program
        weights = [(step.weights_at, step.weight_bytes) for step in program.steps]
        assert len(weights) == 2 * len({*weights})
        assert weights[: len(weights) // 2] == weights[len(weights) // 2 :]
        assert program.weights_bytes == sum(size for _, size in {*weights}) < sum(size for _, size in weights)
        for schedule in (found.resident(), found.planned(least_bytes(found.workload), Mode.back_to_back)):
            with found.session(dnnl, schedule) as session:
                for outputs in ran(session, found.inputs, 2):
                    require_right(found, outputs)


def test_bands_lower_the_peak_and_say_what_they_compute_twice(dnnl: Dnnl, folder: Path) -> None:
    lowered = streamed(dnnl, "plain", folder, 1 << 40).lowered
    layouts = activation_layouts(lowered, "blocked16")
    ladder = regions_by_peak(lowered, layouts, "blocked16", 16)
    peaks = []
    for regions in ladder:
        plan = banded(lowered, regions)
        peaks.append(max(live_bytes(plan.lowered, activation_layouts(plan.lowered, "blocked16"), 16)))
        assert all(1 <= recomputed(lowered, region) < 1.5 for region in regions)
    assert len(ladder) > 1
    assert all(lower < higher for higher, lower in pairwise(peaks))


@settings(max_examples=examples(30), deadline=None)
@given(
    name=st.sampled_from(["plain", "tokens"]),
    share=st.floats(1.0, 4.0),
    mode=st.sampled_from(Mode),
    slow_us=st.lists(st.sampled_from([0, 0, 50, 500]), min_size=1, max_size=5),
    ahead=st.integers(1, 4),
)
def test_loads_wait_for_their_step_and_steps_for_their_load(
    dnnl: Dnnl, folder: Path, name: str, share: float, mode: Mode, slow_us: list[int], ahead: int
) -> None:
    """Freed memory holds NaN: what is loaded too early, or used too late, shows."""
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs)[0]
        session.apply(found.planned(int(share * least_bytes(found.workload)) + 8192, mode))
        steps = len(found.built.program.step_names)
        session.slow([1000 * slow_us[k % len(slow_us)] for k in range(steps)])
        session.expect(ahead)
        assert ran(session, found.inputs, 3) == [expected] * 3
        assert [end >= begin for begin, end in session.ran_ns()] == [True] * steps


@pytest.mark.parametrize("name", MODELS)
def test_neither_loading_ahead_nor_static_memory_changes_outputs(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, found.resident()) as session:
        expected = ran(session, found.inputs, 2)[-1]
    document = found.document(least_bytes(found.workload) + 65536, Mode.back_to_back)
    late = on_demand(document)
    with found.session(dnnl, late, debug=False, gives_back=True) as session:
        assert ran(session, found.inputs, 3) == [expected] * 3
    loads = [k for k, offset in enumerate(document.weight_offset) if offset >= 0 and document.again[k] != k]
    assert loads
    assert [late["after"][k] for k in loads] == [k - 1 for k in loads]


@pytest.mark.parametrize("name", MODELS)
def test_mapped_weights_give_the_same_outputs(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 1 << 40)
    with found.session(dnnl, found.resident()) as read, found.session(dnnl, found.resident(), mapped=True) as mapped:
        assert ran(mapped, found.inputs, 2) == ran(read, found.inputs, 2)


def test_weights_that_are_stored_once_more_are_not_read_again(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    weights = int(found.workload.weight_bytes.sum())
    everything, tight = found.resident(), found.planned(least_bytes(found.workload) + 65536, Mode.back_to_back)
    with found.session(dnnl, everything) as session:
        expected = ran(session, found.inputs)
        assert session.fact("bytes_read") == weights
        session.apply(everything)  # they lie where they stay
        assert ran(session, found.inputs) == expected
        assert session.fact("bytes_read") == 0
        assert session.stream_ms() > 0
        assert 0 < session.read_ms() < 1000
        session.apply(everything)  # what was read for that lies where it should, but nobody promised it
        assert ran(session, found.inputs) == expected
        assert session.fact("bytes_read") == weights
        for schedule in (tight, everything):
            session.apply(schedule)
            assert ran(session, found.inputs) == expected


# Weights in half their bytes: what is rounded, how it is widened in place, and that programs compute with that

_BFLOAT16 = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16)
_BITS = st.integers(0, 2**32 - 1)
_EDGES = (0, 0x80000000, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF, 0x800000, 0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000)
_ODD = (0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF)


def _floats(bits: Sequence[int]) -> npt.NDArray[np.float32]:
    return np.array(bits, np.uint32).view(np.float32)


@given(st.lists(_BITS | st.sampled_from(_EDGES + _ODD), min_size=1, max_size=50))
def test_each_value_is_rounded_to_the_nearest_half_the_even_one_of_two(bits: list[int]) -> None:
    values = _floats(bits)
    found, numbers = rounded(values), ~np.isnan(values)
    np.testing.assert_array_equal(found[numbers], values[numbers].astype(_BFLOAT16).view(np.uint16))
    assert ((found[~numbers] & 0x7FFF) > 0x7F80).all()


@given(st.lists(_BITS | st.sampled_from(_EDGES + _ODD), max_size=20))
def test_it_is_told_whether_rounding_makes_a_finite_value_infinite(bits: list[int]) -> None:
    values = _floats(bits)
    made = (rounded(values).astype(np.uint32) << 16).view(np.float32)
    assert stay_finite(values) == bool((np.isinf(made) == np.isinf(values)).all())


def test_arrays_of_many_values_are_rounded_as_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).standard_normal((7, 13)).astype(np.float32)
    expected = rounded(values)
    assert expected.shape == (7, 13)
    monkeypatch.setattr(weights_file, "_ROUNDED_AT_ONCE", 4)
    assert np.array_equal(rounded(values), expected)
    assert not stay_finite(np.concatenate([values.reshape(-1), _floats([0x7F7FFFFF])]))


def _widened(stored: npt.NDArray[np.generic], kind: Stored) -> npt.NDArray[np.float32]:
    """Halves widened in their own place: they lie in the upper half of it."""
    values = np.zeros(stored.size, np.float32)
    values.view(np.uint16)[stored.size :] = stored.view(np.uint16)
    widen = native.function(f"widen_{kind}", None, *(ctypes.c_int64,) * 3)
    widen(values.ctypes.data + stored.nbytes, values.ctypes.data, stored.size)
    return values


def test_every_half_is_widened_in_its_own_place() -> None:
    stored = np.arange(1 << 16).astype(np.uint16)
    assert _widened(stored, BF16).tobytes() == (stored.astype(np.uint32) << 16).tobytes()
    values, expected = _widened(stored, F16), stored.view(np.float16)
    np.testing.assert_array_equal(values, expected.astype(np.float32))
    numbers = ~np.isnan(values)
    assert (np.signbit(values) == np.signbit(expected))[numbers].all()


def test_what_float16_cannot_hold_is_told() -> None:
    values = np.array([65519, -65504, 1e-9, np.inf, np.nan], np.float32)
    assert stay_finite(values, F16)
    assert not stay_finite(np.array([-65520], np.float32), F16)
    np.testing.assert_array_equal(rounded(values, F16), values.astype(np.float16).view(np.uint16))


def _rounded_weights(dnnl: Dnnl, found: Streamed, halved: Streamed, folder: Path) -> Streamed:
    """The program of whole weights, with those values in its file that the other one stores in half their bytes."""
    content = np.fromfile(found.weights, np.uint8)
    for whole, half in zip(found.built.program.steps, halved.built.program.steps, strict=True):
        if half.stored_bytes < half.weight_bytes:
            values = content[whole.weights_at : whole.weights_at + whole.weight_bytes].view(np.float32)
            values.view(np.uint32)[:] = rounded(values.copy()).astype(np.uint32) << 16
    (folder / "rounded").mkdir()
    content.tofile(folder / "rounded" / WEIGHTS_NAME)
    PlanWriter(found.model, dnnl, 1, RunCores((), ())).program(folder / "rounded", TapedProgram(found.built.program))
    return replace(found, folder=folder / "rounded")


@pytest.mark.parametrize("limit", by_day([8192, 1 << 40, 1]))
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_rounded_weights_to_the_bit(dnnl: Dnnl, tmp_path: Path, name: str, limit: int) -> None:
    exact, halved = (streamed(dnnl, name, tmp_path, limit, halved=half) for half in (False, True))
    known = _rounded_weights(dnnl, exact, halved, tmp_path)
    assert halved.built.program.weights_bytes < exact.built.program.weights_bytes
    with known.session(dnnl, known.resident()) as session:
        expected = ran(session, known.inputs)[0]
    least = least_bytes(halved.workload)
    for share, mode in ((1.0, Mode.isolated), (1.3, Mode.back_to_back), (4.0, Mode.back_to_back)):
        with halved.session(dnnl, halved.planned(int(share * least) + 4 * PAGE_BYTES, mode)) as session:
            assert ran(session, halved.inputs, 3) == [expected] * 3


def test_weights_that_bands_keep_are_widened_too(dnnl: Dnnl, tmp_path: Path) -> None:
    exact, halved = (streamed(dnnl, "plain", tmp_path, 1 << 40, (Region(0, 1, 3),), halved=half) for half in (False, True))
    known = _rounded_weights(dnnl, exact, halved, tmp_path)
    assert any(step.name.startswith("keep") and step.stored_bytes < step.weight_bytes for step in halved.built.program.steps)
    with known.session(dnnl, known.resident()) as session:
        expected = ran(session, known.inputs)[0]
    with halved.session(dnnl, halved.planned(least_bytes(halved.workload) + 65536, Mode.back_to_back)) as session:
        assert ran(session, halved.inputs, 2) == [expected] * 2


def test_weights_that_would_become_infinite_are_stored_whole(dnnl: Dnnl, tmp_path: Path) -> None:
    b = GraphBuilder("large", (1, 64))
    model = save_onnx(b.build(b.fc(b.fc("input", 64), 64)), tmp_path / "large.onnx")
    document = onnx.load(model)
    changed = next(one for one in document.graph.initializer if len(one.dims) == 2)
    values = numpy_helper.to_array(changed).copy()
    values.reshape(-1)[5] = np.finfo(np.float32).max  # as masks of attention
    changed.CopyFrom(numpy_helper.from_array(values, changed.name))
    onnx.save(document, model)
    lowered = lower(simplify(load_onnx(model)))
    names = halvable(model, lowered)
    assert changed.name not in names
    built = build(dnnl, lowered, "blocked16", 1 << 40, halved=names)
    sizes = [(step.stored_bytes, step.weight_bytes) for step in built.program.steps if step.weight_bytes]
    assert len(sizes) == 2
    assert sum(stored < whole for stored, whole in sizes) == 1


def test_only_what_takes_more_than_a_page_is_stored_in_half(dnnl: Dnnl, tmp_path: Path) -> None:
    program = streamed(dnnl, "residual", tmp_path, 8192, halved=True).built.program
    assert {step.weight_bytes > PAGE_BYTES for step in program.steps if step.weight_bytes} == {True, False}
    for step in program.steps:
        assert step.stored_bytes == (step.weight_bytes if step.weight_bytes <= PAGE_BYTES else step.weight_bytes // 2)


def test_how_fast_values_are_widened_is_measured(dnnl: Dnnl, tmp_path: Path) -> None:
    exact, halved = (streamed(dnnl, "plain", tmp_path, 8192, halved=half) for half in (False, True))
    for found in (exact, halved):
        with found.session(dnnl, found.resident()) as session:
            assert session.stream_ms() > 0
            assert (session.fact("widened_per_ms") > 0) == (found is halved)
            assert session.fact("streamed_bytes") == sum(step.weight_bytes for step in found.built.program.steps)
