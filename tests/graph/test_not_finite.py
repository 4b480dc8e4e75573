"""Infinities and what is no number: what passes them on as ONNX Runtime does, and what is said where they are not passed on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import each_way, made, node, onnxruntime_outputs, values, write

from edgeplan import plan_memory
from edgeplan.errors import CheckError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process.inputs import not_finite
from edgeplan.runs import Run, run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.tensors import relative_error

SHAPE = (1, 16, 4, 36)
Form = tuple[list[onnx.NodeProto], Mapping[str, npt.ArrayLike]]
NAN, INFINITIES = (np.nan,), (np.inf, -np.inf)

#: What moves elements: each stays what it is, and no other changes.
MOVES: dict[str, Form] = {
    "Gather": ([node("Gather", "x k", axis=1)], {"k": np.array([3, 1, 2, 2])}),
    "Tile": ([node("Tile", "x k")], {"k": np.array([1, 2, 1, 3])}),
    "Expand": ([node("Expand", "x k")], {"k": np.array([2, 16, 4, 36])}),
    "Expand, many times": ([node("Expand", "x k")], {"k": np.array([40, 16, 4, 36])}),
    "Tile, many times": ([node("Tile", "x k")], {"k": np.array([1, 1, 40, 1])}),
    "Gather, many places": ([node("Gather", "x k", axis=1)], {"k": np.random.default_rng(0).permutation(48) % 16}),
    **{
        f"Pad, {mode}": ([node("Pad", "x k", mode=mode)], {"k": np.array([0, 0, 0, 30, 0, 3, 2, 30])})
        for mode in ("edge", "reflect", "wrap")
    },
    "Pad by a number": ([node("Pad", "x k v")], {"k": np.array([0, 0, 1, 7, 0, 0, 2, 1]), "v": np.float32(3.5)}),
    "Slice backwards": ([node("Slice", "x a b c a")], {"a": np.array([-1]), "b": np.array([-1000]), "c": np.array([3])}),
    "Pad": ([node("Pad", "x k")], {"k": np.array([0, 0, 1, 7, 0, 0, 2, 1])}),
    "Slice": ([node("Slice", "x a b c")], {"a": np.array([1]), "b": np.array([9]), "c": np.array([1])}),
    "Concat": ([node("Concat", "x z", axis=1)], {}),
    **{
        f"Resize to {sizes}, {coordinates}": (
            [node("Resize", "x - - k", coordinate_transformation_mode=coordinates, nearest_mode=rounding)],
            {"k": np.array(sizes)},
        )
        for sizes, coordinates, rounding in (
            ([1, 16, 9, 50], "half_pixel", "round_prefer_floor"),
            ([1, 16, 3, 100], "align_corners", "ceil"),
            ([1, 16, 2, 12], "asymmetric", "floor"),
            ([1, 16, 8, 72], "half_pixel", "round_prefer_floor"),
            ([1, 16, 4, 35], "asymmetric", "floor"),
            ([2, 40, 4, 36], "asymmetric", "floor"),
        )
    },
    "Resize of a region": (
        [node("Resize", "x r - k", coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=-7.5)],
        {"r": np.array([0, 0, 0.2, -0.3, 1, 1, 0.9, 1.4], np.float32), "k": np.array([1, 16, 6, 50])},
    ),
    "Transpose": ([node("Transpose", "x", perm=[0, 2, 3, 1])], {}),
    "DepthToSpace": ([node("DepthToSpace", "x", blocksize=2)], {}),
    "SpaceToDepth": ([node("SpaceToDepth", "x", blocksize=4)], {}),
    "GatherND": ([node("GatherND", "x k")], {"k": np.array([[0, 3], [0, -2]])}),
    "GatherElements": ([node("GatherElements", "x k", axis=3)], {"k": np.arange(16 * 4 * 40).reshape(1, 16, 4, 40) % 36}),
    "Split": ([node("Split", "x k", "a y", axis=3)], {"k": np.array([5, 31])}),
    "Where": ([node("Where", "k x z")], {"k": np.arange(36) % 3 > 0}),
    "Trilu": ([node("Trilu", "x")], {}),
    "Reshape": ([node("Reshape", "x k")], {"k": np.array([16, 144])}),
}
_W = {"w": values(16, 16, 1, 1)}
#: What computes, and passes on what is no number.
PASSES: dict[str, Form] = {
    **{op: ([node(op, "x")], {}) for op in ("LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu", "Softplus", "Mish", "Selu")},
    **{op: ([node(op, "x")], {}) for op in ("Softsign", "Abs", "Neg", "Sqrt", "Log", "Reciprocal", "Floor", "Erf", "Sign")},
    **{op: ([node(op, "x")], {}) for op in ("Sin", "Atan", "Asinh")},
    **{op: ([node(op, "x z")], {}) for op in ("Add", "Sub", "Mul", "Div")},
    "PRelu": ([node("PRelu", "x k")], {"k": np.linspace(0.1, 1.5, 16, dtype=np.float32).reshape(16, 1, 1)}),
    "Pow 2": ([node("Pow", "x k")], {"k": np.float32(2)}),
    "Pow 3": ([node("Pow", "x k")], {"k": np.float32(3)}),
    "swish": ([node("Sigmoid", "x", "s"), node("Mul", "x s")], {}),
    "GlobalAveragePool": ([node("GlobalAveragePool", "x")], {}),
    "AveragePool": ([node("AveragePool", "x", kernel_shape=[2, 2])], {}),
    "ReduceMean": ([node("ReduceMean", "x k")], {"k": np.array([1])}),
    "ReduceSum": ([node("ReduceSum", "x k")], {"k": np.array([3])}),
    "ReduceProd": ([node("ReduceProd", "x k")], {"k": np.array([3])}),
    "ReduceL2": ([node("ReduceL2", "x k")], {"k": np.array([1])}),
    "CumSum": ([node("CumSum", "x k")], {"k": np.array(1)}),
    "LayerNormalization": ([node("LayerNormalization", "x k", axis=-1)], {"k": np.ones(36, np.float32)}),
    "Conv, LeakyRelu": ([node("Conv", "x w", "c"), node("LeakyRelu", "c")], _W),
    "Conv, Tanh": ([node("Conv", "x w", "c"), node("Tanh", "c")], _W),
    "Conv": ([node("Conv", "x w")], _W),
}  # fmt: skip


def _given(special: tuple[float, ...]) -> dict[str, np.ndarray]:
    found = {}
    for seed, name in enumerate("xz"):
        rng = np.random.default_rng(seed)
        value = 2 * rng.standard_normal(SHAPE).astype(np.float32)
        picked = rng.random(SHAPE) < 0.05
        value[picked] = rng.choice(special, picked.sum())
        found[name] = value
    return found


def _assert_same(dnnl: Dnnl, path: Path, special: tuple[float, ...], *, exactly: bool = False, most: int | None = None) -> None:
    """Under every home layout, by every candidate."""
    given = _given(special)
    (wanted,) = onnxruntime_outputs(path, given)
    assert most or not np.isfinite(wanted).all()
    off = dict.fromkeys(("rtol", "atol"), 0.0) if exactly else {"rtol": 1e-3, "atol": 1e-4}
    for how, found in each_way(dnnl, path, {name: given[name] for name in load_onnx(path).inputs}, most=most):
        np.testing.assert_allclose(*found.values(), wanted, err_msg=how, **off)


def _model(forms: Mapping[str, Form], name: str, path: Path) -> Path:
    nodes, constants = forms[name]
    reads = {given for one in nodes for given in one.input}
    inputs: dict[str, Any] = {given: SHAPE for given in "xz" if given in reads}
    return write(made(nodes, inputs, constants, opset=20), path)


@pytest.mark.parametrize("special", [NAN, INFINITIES], ids=["nan", "infinities"])
@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_stays_what_it_is(dnnl: Dnnl, tmp_path: Path, name: str, special: tuple[float, ...]) -> None:
    _assert_same(dnnl, _model(MOVES, name, tmp_path / "m.onnx"), special, exactly=True)


@pytest.mark.parametrize("name", PASSES)
def test_what_is_no_number_is_passed_on_and_infinities_by_some(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    path = _model(PASSES, name, tmp_path / "m.onnx")
    _assert_same(dnnl, path, NAN)
    if name in ("LeakyRelu", "Sigmoid", "Tanh", "Elu", "Abs", "Neg", "PRelu", "Pow 3"):
        _assert_same(dnnl, path, INFINITIES, most=1)


def test_equal_infinities_are_no_difference() -> None:
    one = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert relative_error([one], [one.copy()]) == 0
    assert relative_error([one], [one * np.float32(1.5)]) == pytest.approx(1 / 3)
    for place, other in ((1, 0.0), (2, -np.inf), (0, np.nan)):
        changed = one.copy()
        changed[place] = other
        assert relative_error([one], [changed]) == np.inf
        assert relative_error([changed], [one]) == np.inf
    assert relative_error([np.array([True])], [np.array([False])]) == np.inf
    assert not_finite({"a": one, "b": np.array([1]), "c": np.array([0.5])}) == ("a",)


def test_a_check_tells_such_inputs_from_a_bad_plan(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Behind Relu NaN is 0; behind LeakyRelu it is what ONNX Runtime gives."""
    differences = {}
    for op in ("Relu", "LeakyRelu"):
        path = write(made([node("Conv", "x w", "c"), node(op, "c")], {"x": SHAPE}, _W), tmp_path / f"{op}.onnx")
        plan_memory(path, tmp_path / op, "64MiB", threads=1)
        found = run(tmp_path / op, np.full(SHAPE, np.nan, np.float32), check=True)
        assert found.not_finite == ("x",)
        assert "not finite everywhere: x" in caplog.text
        assert found.difference is not None
        differences[op] = found.difference
    assert run(tmp_path / "Relu", check=True).not_finite == ()
    assert differences["LeakyRelu"] == 0
    Run(found.plan, difference=0.0, not_finite=("x",)).require_checked()
    with pytest.raises(CheckError, match=r"on inputs that are not finite \('x'\)") as caught:
        Run(found.plan, difference=float("inf"), not_finite=("x",)).require_checked()
    assert caught.value.next_step.startswith("check the plan on finite inputs")
    with pytest.raises(CheckError, match="in what is not finite, more than the 1e-04 of rounding"):
        Run(found.plan, difference=float("inf")).require_checked()
