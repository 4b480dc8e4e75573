"""Weights in half their bytes: what is rounded, how it is widened in place, and that programs compute with that."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from streamed_models import MODELS, Streamed, ran, streamed

from depth import by_day
from edgeplan import native
from edgeplan.chapters.memory.folders import PlanWriter, RunCores
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.runtime.bands import Region
from edgeplan.runtime.creation import PAGE_BYTES
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import TapedProgram
from edgeplan.runtime.streaming import weights_file
from edgeplan.runtime.streaming.build import build
from edgeplan.runtime.streaming.schedules import BF16, F16, Stored
from edgeplan.runtime.streaming.weights_file import halvable, rounded, stay_finite

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
