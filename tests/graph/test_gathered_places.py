"""Elements and slices that indices name, for seeded shapes, axes and batches: as numpy's own loops pick and write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import node
from onnx import TensorProto, helper

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

Array = npt.NDArray[Any]
_CASES = range(12)
_REDUCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "none": lambda _, given: given, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
}  # fmt: skip
_KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32, "bool": TensorProto.BOOL}


def _saved(path: Path, made: onnx.NodeProto, data: Array, indices: Array, updates: Array | None = None) -> Path:
    inputs = {"x": data, "i": indices} | ({} if updates is None else {"u": updates})
    body = helper.make_graph(
        [made],
        "picked",
        [helper.make_tensor_value_info(name, _KINDS[str(given.dtype)], given.shape) for name, given in inputs.items()],
        [helper.make_tensor_value_info("y", _KINDS[str(data.dtype)], None)],
    )
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString())
    return path


def _run(dnnl: Dnnl, path: Path, data: Array, indices: Array, updates: Array | None = None) -> Array:
    graph, _ = read_model(path)
    given = {"x": data, "i": indices} | ({} if updates is None else {"u": updates})
    return SequentialSession(dnnl, default_program(dnnl, path, graph, NCHW), path.parent).run(given)["y"]


def _drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    dtype = rng.choice(list(_KINDS))
    return (rng.standard_normal(shape) * 9).astype(dtype)


def _along_an_axis(rng: np.random.Generator) -> tuple[int, Array, Array]:
    """An axis, data, and for each of some places of all other axes an index along it."""
    shape = tuple(rng.integers(1, 6, rng.integers(1, 5)))
    axis = int(rng.integers(-len(shape), len(shape)))
    places = [int(rng.integers(1, size + 1)) for size in shape]
    places[axis] = int(rng.integers(1, 9))
    data, size = _drawn(rng, shape), shape[axis]
    indices = rng.integers(-size, size, places).astype(rng.choice(["int32", "int64"]))
    return axis, data, indices


@pytest.mark.parametrize("seed", _CASES)
def test_an_element_for_each_index(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    axis, data, indices = _along_an_axis(rng)
    path = _saved(tmp_path / "m.onnx", node("GatherElements", "x i", axis=axis), data, indices)
    kept = tuple(slice(None) if k == axis % data.ndim else slice(count) for k, count in enumerate(indices.shape))
    np.testing.assert_array_equal(_run(dnnl, path, data, indices), np.take_along_axis(data[kept], indices, axis))


@pytest.mark.parametrize("seed", _CASES)
def test_a_slice_for_each_row_of_indices(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    shape = tuple(rng.integers(1, 6, rng.integers(1, 5)))
    batch = int(rng.integers(0, len(shape)))
    depth = int(rng.integers(1, len(shape) - batch + 1))
    loop = (*shape[:batch], *rng.integers(1, 5, rng.integers(0, 3)))
    data, sizes = _drawn(rng, shape), shape[batch : batch + depth]
    indices = np.stack([rng.integers(-size, size, loop) for size in sizes], axis=-1)
    path = _saved(tmp_path / "m.onnx", node("GatherND", "x i", batch_dims=batch), data, indices)
    wanted = np.empty((*loop, *shape[batch + depth :]), data.dtype)
    for place in np.ndindex(*loop):
        wanted[place] = data[(*place[:batch], *indices[place])]
    np.testing.assert_array_equal(_run(dnnl, path, data, indices), wanted)


def _reduction(rng: np.random.Generator, data: Array) -> str:
    return "none" if data.dtype == bool else str(rng.choice(list(_REDUCTIONS)))


@pytest.mark.parametrize("seed", _CASES)
def test_an_element_written_for_each_index(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    axis, data, indices = _along_an_axis(rng)
    updates = (rng.standard_normal(indices.shape) * 9).astype(data.dtype)
    word, wanted = _reduction(rng, data), data.copy()
    path = _saved(tmp_path / "m.onnx", node("ScatterElements", "x i u", axis=axis, reduction=word), data, indices, updates)
    for place in np.ndindex(*indices.shape):
        to = list(place)
        to[axis] = indices[place]
        wanted[tuple(to)] = _REDUCTIONS[word](wanted[tuple(to)], updates[place])
    np.testing.assert_allclose(_run(dnnl, path, data, indices, updates), wanted, rtol=1e-6)


@pytest.mark.parametrize("seed", _CASES)
def test_a_slice_written_for_each_row_of_indices(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(300 + seed)
    shape = tuple(rng.integers(1, 6, rng.integers(1, 5)))
    depth = int(rng.integers(1, len(shape) + 1))
    loop = tuple(rng.integers(1, 5, rng.integers(1, 3)))
    data = _drawn(rng, shape)
    indices = np.stack([rng.integers(-size, size, loop) for size in shape[:depth]], axis=-1)
    updates = (rng.standard_normal((*loop, *shape[depth:])) * 9).astype(data.dtype)
    word, wanted = _reduction(rng, data), data.copy()
    path = _saved(tmp_path / "m.onnx", node("ScatterND", "x i u", reduction=word), data, indices, updates)
    for place in np.ndindex(*loop):
        to = tuple(indices[place])
        wanted[to] = _REDUCTIONS[word](wanted[to], updates[place])
    np.testing.assert_allclose(_run(dnnl, path, data, indices, updates), wanted, rtol=1e-6)


def test_a_scatter_of_an_old_opset_is_one_of_elements(dnnl: Dnnl, tmp_path: Path) -> None:
    data, indices = np.zeros((3, 3), np.float32), np.array([[1, 0, 2]])
    path = _saved(tmp_path / "m.onnx", node("Scatter", "x i u"), data, indices, np.float32([[1, 2, 3]]))
    model = onnx.load(path)
    model.opset_import[0].version = 9
    onnx.save(model, path)
    found = _run(dnnl, path, data, indices, np.float32([[1, 2, 3]]))
    np.testing.assert_array_equal(found, [[0, 2, 0], [1, 0, 0], [0, 0, 3]])


@pytest.mark.parametrize(
    ("made", "indices", "updates"),
    [
        (node("ScatterElements", "x i u", axis=1), np.array([[0, 5]]), np.zeros((1, 2), np.float32)),
        (node("ScatterND", "x i u"), np.array([[0, -6], [2, 0]]), np.zeros(2, np.float32)),
    ],
)
def test_an_index_to_write_outside_its_axis_is_an_error(
    dnnl: Dnnl, tmp_path: Path, made: onnx.NodeProto, indices: Array, updates: Array
) -> None:
    data = np.zeros((2, 5), np.float32)
    path = _saved(tmp_path / "m.onnx", made, data, indices, updates)
    with pytest.raises(EdgeplanError, match="an index lies outside the axis"):
        _run(dnnl, path, data, indices, updates)


@pytest.mark.parametrize(
    ("made", "indices", "updates", "told"),
    [
        (node("ScatterElements", "x i u", axis=1), (2, 3), (2, 2), "of \\(2, 2\\) by indices"),
        (node("ScatterElements", "x i u", axis=0), (2, 7), (2, 7), "along axis 0"),
        (node("ScatterElements", "x i u", reduction="mean"), (2, 5), (2, 5), "unknown reduction 'mean'"),
        (node("ScatterND", "x i u"), (2, 1), (2, 4), "of \\(2, 4\\) to"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, made: onnx.NodeProto, indices: tuple[int, ...], updates: tuple[int, ...], told: str
) -> None:
    data = np.zeros((2, 5), np.float32)
    path = _saved(tmp_path / "m.onnx", made, data, np.zeros(indices, np.int64), np.zeros(updates, np.float32))
    with pytest.raises(ModelError, match=told):
        load_onnx(path)


@pytest.mark.parametrize(
    ("made", "indices"),
    [(node("GatherElements", "x i", axis=1), np.array([[0, 5]])), (node("GatherND", "x i"), np.array([[0, -6], [2, 0]]))],
)
def test_an_index_outside_its_axis_is_an_error(dnnl: Dnnl, tmp_path: Path, made: onnx.NodeProto, indices: Array) -> None:
    data = np.zeros((2, 5), np.float32)
    path = _saved(tmp_path / "m.onnx", made, data, indices)
    with pytest.raises(EdgeplanError, match="an index lies outside the axis"):
        _run(dnnl, path, data, indices)


@pytest.mark.parametrize(
    ("made", "indices", "told"),
    [
        (node("GatherElements", "x i", axis=0), (2, 7), "along axis 0"),
        (node("GatherElements", "x i", axis=2), (2, 5), "axis"),
        (node("GatherND", "x i", batch_dims=1), (3, 1), "by indices"),
        (node("GatherND", "x i"), (2, 3), "GatherND"),
    ],
)
def test_indices_that_do_not_fit_are_refused(tmp_path: Path, made: onnx.NodeProto, indices: tuple[int, ...], told: str) -> None:
    path = _saved(tmp_path / "m.onnx", made, np.zeros((2, 5), np.float32), np.zeros(indices, np.int64))
    with pytest.raises(ModelError, match=told):
        load_onnx(path)


@pytest.mark.parametrize("made", [node("GatherElements", "x i", axis=1), node("GatherND", "x i")])
def test_no_indices_at_all_are_refused(tmp_path: Path, made: onnx.NodeProto) -> None:
    path = _saved(tmp_path / "m.onnx", made, np.zeros((2, 5), np.float32), np.zeros((0, 2), np.int64))
    with pytest.raises(ModelError, match="no static shape") as caught:
        load_onnx(path)
    assert caught.value.next_step
