"""Weights in half their bytes: what is rounded, how it is widened in place, and that programs compute with that."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from onnx import numpy_helper
from streamed_models import MODELS, Streamed, streamed

from depth import by_day, examples
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.bands import Region
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import decoded, encoded
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.streaming import halves, reader, rounding
from edgeplan.runtime.streaming.build import build, halvable
from edgeplan.runtime.streaming.program import PAGE_BYTES, StreamProgram, packed
from edgeplan.runtime.streaming.reader import Load, Loader, WeightsFile, Widening, widen_read
from edgeplan.runtime.streaming.rounding import rounded, stay_finite

_BITS = st.integers(0, 2**32 - 1)
_EDGES = (0, 0x80000000, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF, 0x800000, 0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7F8000)
_ODD = (0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x7FFFFFFF)


def _floats(bits: Sequence[int]) -> npt.NDArray[np.float32]:
    return np.array(bits, np.uint32).view(np.float32)


def _value(half: int) -> float:
    """What a half stands for; the one above the largest finite one for the power of two that it would be."""
    sign = -1.0 if half & 0x8000 else 1.0
    exponent, fraction = half >> 7 & 0xFF, half & 0x7F
    return sign * (fraction * 2.0**-133 if not exponent else (128 + fraction) * 2.0 ** (exponent - 134))


@given(st.lists(_BITS | st.sampled_from(_EDGES + _ODD), min_size=1, max_size=50))
def test_each_value_is_rounded_to_the_nearest_half_the_even_one_of_two(bits: list[int]) -> None:
    values = _floats(bits)
    for value, half in zip(values.tolist(), rounded(values).tolist(), strict=True):
        if math.isnan(value):
            assert (half & 0x7FFF) > 0x7F80
            continue
        assert half >> 15 == (math.copysign(1.0, value) < 0)
        if math.isinf(value):
            assert half & 0x7FFF == 0x7F80
            continue
        magnitude, own = abs(value), half & 0x7FFF
        distance = abs(_value(own) - magnitude)  # exact: of numbers of 24 bits, near each other
        for other in {max(0, own - 1), min(0x7F80, own + 1)} - {own}:
            apart = abs(_value(other) - magnitude)
            assert distance < apart or (distance == apart and own % 2 == 0)


@given(st.lists(_BITS | st.sampled_from(_EDGES + _ODD), max_size=20))
def test_it_is_told_whether_rounding_makes_a_finite_value_infinite(bits: list[int]) -> None:
    values = _floats(bits)
    made = (rounded(values).astype(np.uint32) << 16).view(np.float32)
    assert stay_finite(values) == bool((np.isinf(made) == np.isinf(values)).all())


def test_arrays_of_many_values_are_rounded_as_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(1).standard_normal((7, 13)).astype(np.float32)
    expected = rounded(values)
    assert expected.shape == (7, 13)
    monkeypatch.setattr(rounding, "_ROUNDED_AT_ONCE", 4)
    assert np.array_equal(rounded(values), expected)
    assert not stay_finite(np.concatenate([values.reshape(-1), _floats([0x7F7FFFFF])]))


@given(st.integers(1, 5), st.integers(0, 2**32 - 1), st.data())
def test_halves_are_widened_in_their_own_place_read_by_read(pages: int, seed: int, data: st.DataObject) -> None:
    load = Load(0, 0, pages * PAGE_BYTES, PAGE_BYTES, -1, -1, halved=True)
    stored = np.random.default_rng(seed).integers(0, 2**16, load.size // 2, np.uint16)
    memory = np.full(load.address + load.memory_bytes + PAGE_BYTES, 7, np.uint8)
    memory[load.read_to : load.read_to + load.size] = stored.view(np.uint8)
    at = 0
    while at < load.size:
        size = PAGE_BYTES * data.draw(st.integers(1, (load.size - at) // PAGE_BYTES))
        assert widen_read(memory.ctypes.data, [Widening.of(load, at, size)]) == 2 * size
        at += size
    end = load.address + load.memory_bytes
    assert memory[load.address : end].tobytes() == (stored.astype(np.uint32) << 16).tobytes()
    assert set(memory[: load.address]) == set(memory[end:]) == {7}


def test_every_float16_is_widened() -> None:
    stored = np.arange(1 << 16).astype(np.uint16)
    values = np.full(stored.size, 7, np.float32)
    halves.widen(stored.ctypes.data, values.ctypes.data, stored.nbytes, halves.F16)
    np.testing.assert_array_equal(values, stored.view(np.float16).astype(np.float32))
    numbers = ~np.isnan(values)
    assert (np.signbit(values) == np.signbit(stored.view(np.float16)))[numbers].all()


def test_float16_is_widened_in_its_own_place() -> None:
    load = Load(0, 0, 3 * PAGE_BYTES, PAGE_BYTES, -1, -1, halved=True, kind=halves.F16)
    stored = np.random.default_rng(1).standard_normal(load.size // 2).astype(np.float16)
    memory = np.zeros(load.address + load.memory_bytes, np.uint8)
    memory[load.read_to :] = stored.view(np.uint8)
    assert widen_read(memory.ctypes.data, [Widening.of(load, 0, load.size)]) == 2 * load.size
    np.testing.assert_array_equal(memory[load.address :].view(np.float32), stored.astype(np.float32))


def test_what_float16_cannot_hold_is_told() -> None:
    values = np.array([65519, -65504, 1e-9, np.inf, np.nan], np.float32)
    assert stay_finite(values, halves.F16)
    assert not stay_finite(np.array([-65520], np.float32), halves.F16)
    np.testing.assert_array_equal(rounded(values, halves.F16), values.astype(np.float16).view(np.uint16))


class _Disk(WeightsFile):
    """A disk that holds some bytes, and takes as long for a read as it is told."""

    def __init__(self, content: bytes, delays: Sequence[float]) -> None:
        self._content, self._delays, self._read, self._lock = content, delays, 0, threading.Lock()

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        with self._lock:
            delay = self._delays[self._read % len(self._delays)]
            self._read += 1
        time.sleep(delay)
        for piece in pieces:
            piece[:] = self._content[offset : offset + piece.nbytes]
            offset += piece.nbytes


@settings(max_examples=examples(30), deadline=None)
@given(
    loads=st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=6),
    ahead=st.integers(1, 3),
    delays=st.lists(st.sampled_from([0.0, 0.0005, 0.002]), min_size=1, max_size=5),
    lanes=st.integers(1, 3),
    read_pages=st.integers(1, 4),
)
def test_whatever_the_order_of_reads_values_are_those_of_the_file(
    loads: list[tuple[int, bool]], ahead: int, delays: list[float], lanes: int, read_pages: int
) -> None:
    """Loads of several reads each take turns in `ahead` places; some are halved."""
    count, place = len(loads), 2 * PAGE_BYTES * max(pages for pages, _ in loads)
    begins = [PAGE_BYTES * sum(pages for pages, _ in loads[:k]) for k in range(count)]
    content = np.random.default_rng(count).integers(0, 256, PAGE_BYTES * sum(pages for pages, _ in loads), np.uint8)
    last = {k % ahead: k for k in range(count)}
    asked = [
        Load(
            k, begins[k], PAGE_BYTES * pages, place * (k % ahead), k - ahead if k >= ahead else -1,
            last[k % ahead] if k < ahead else -1, halved,
        )
        for k, (pages, halved) in enumerate(loads)
    ]  # fmt: skip
    memory = bytearray(place * ahead)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK_BYTES", read_pages * PAGE_BYTES)
        loader = Loader(_Disk(content.tobytes(), delays), lanes)
        try:
            loader.start(asked, count, memoryview(memory), 2)
            for k in range(2 * count):
                load = asked[k % count]
                loader.wait_loaded(k + 1)
                stored = content[load.at : load.at + load.size]
                expected = stored.view(np.uint16).astype(np.uint32) << 16 if load.halved else stored
                assert bytes(memory[load.address : load.address + load.memory_bytes]) == expected.tobytes()
                loader.ended(k + 1)
            assert (loader.widened_per_ms > 0) == any(load.halved for load in asked)
        finally:
            loader.pause()
            loader.close()


def test_only_whole_blocks_are_widened() -> None:
    with pytest.raises(ValueError, match="whole blocks"):
        halves.widen(0, 0, 100)
    halves.widen(0, 0, 0)


def _rounded_weights(found: Streamed, halved: Streamed, folder: Path) -> Streamed:
    """The program of whole weights, with those values in its file that the other one stores in half their bytes."""
    content = np.fromfile(found.weights, np.uint8)
    for whole, half in zip(found.built.program.steps, halved.built.program.steps, strict=True):
        if half.stored_bytes < half.weight_bytes:
            values = content[whole.weights_at : whole.weights_at + whole.weight_bytes].view(np.float32)
            values.view(np.uint32)[:] = rounded(values.copy()).astype(np.uint32) << 16
    path = folder / "rounded.bin"
    content.tofile(path)
    return replace(found, weights=path)


@pytest.mark.parametrize("limit", by_day([8192, 1 << 40, 1]))
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_rounded_weights_to_the_bit(dnnl: Dnnl, tmp_path: Path, name: str, limit: int) -> None:
    exact, halved = (streamed(dnnl, name, tmp_path, limit, halved=half) for half in (False, True))
    known = _rounded_weights(exact, halved, tmp_path)
    assert halved.built.program.weights_bytes < exact.built.program.weights_bytes
    with known.session(dnnl, known.resident()) as session:
        expected = session.run(known.inputs)
    least = bounds.least_bytes(halved.workload)
    for share, mode in ((1.0, Mode.isolated), (1.3, Mode.back_to_back), (4.0, Mode.back_to_back)):
        with halved.session(dnnl, halved.planned(int(share * least) + 4 * PAGE_BYTES, mode)) as session:
            session.expect(3)
            assert [session.run(halved.inputs) for _ in range(3)] == [expected] * 3


def test_weights_that_bands_keep_are_widened_too(dnnl: Dnnl, tmp_path: Path) -> None:
    exact, halved = (streamed(dnnl, "plain", tmp_path, 1 << 40, (Region(0, 1, 3),), halved=half) for half in (False, True))
    known = _rounded_weights(exact, halved, tmp_path)
    assert any(step.name.startswith("keep") and step.stored_bytes < step.weight_bytes for step in halved.built.program.steps)
    with known.session(dnnl, known.resident()) as session:
        expected = session.run(known.inputs)
    with halved.session(dnnl, halved.planned(bounds.least_bytes(halved.workload) + 65536, Mode.back_to_back)) as session:
        assert [session.run(halved.inputs) for _ in range(2)] == [expected] * 2


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


def test_a_program_without_halves_is_as_it_was(dnnl: Dnnl, tmp_path: Path) -> None:
    program = streamed(dnnl, "plain", tmp_path, 8192).built.program
    assert program.stored_rows == b""
    assert all(step.stored_bytes == step.weight_bytes for step in program.steps)
    halved = streamed(dnnl, "plain", tmp_path, 8192, halved=True).built.program
    assert len(halved.stored_rows) == 8 * len(halved.steps)
    for one in (program, halved):
        assert decoded(encoded(one), StreamProgram, tmp_path, "memory") == one


@pytest.mark.parametrize("stored", [4096, 3 * 4096, 2048])
def test_sizes_that_no_weights_have_are_refused(dnnl: Dnnl, tmp_path: Path, stored: int) -> None:
    found = streamed(dnnl, "plain", tmp_path, 1 << 40, halved=True)
    sizes = [step.stored_bytes for step in found.built.program.steps]
    sizes[int(np.argmax(sizes))] = stored
    for rows in (packed((size,) for size in sizes), packed((size,) for size in sizes[:-1])):
        wrong = replace(found, built=replace(found.built, program=structs.replace(found.built.program, stored_rows=rows)))
        with pytest.raises(FormatError, match="no known size"), wrong.session(dnnl, found.resident()):
            pass


def test_an_error_of_widening_is_told_where_weights_are_waited_for(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192, halved=True)

    def refusing(_halves: int, _values: int, _size: int, _kind: str) -> None:
        raise ModelError("no more widening", where="here", next_step="stop")

    with found.session(dnnl, found.resident()) as session:
        expected = session.run(found.inputs)
        with monkeypatch.context() as patched:
            patched.setattr(halves, "widen", refusing)
            session.apply(found.planned(bounds.least_bytes(found.workload) + 65536, Mode.back_to_back))
            with pytest.raises(ModelError, match="no more widening"):
                session.run(found.inputs)
        assert session.run(found.inputs) == expected


def test_how_fast_values_are_widened_is_measured(dnnl: Dnnl, tmp_path: Path) -> None:
    exact, halved = (streamed(dnnl, "plain", tmp_path, 8192, halved=half) for half in (False, True))
    for found in (exact, halved):
        with found.session(dnnl, found.resident()) as session:
            assert session.stream_ms() > 0
            assert (session.widened_per_ms > 0) == (found is halved)
            assert session.streamed_bytes == sum(step.weight_bytes for step in found.built.program.steps)
