"""Files of opsets 1 to 6: read where they mean what later ones do, refused by name where not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from model_file_runs import assert_runs, made, node, values, write

from edgeplan.errors import ModelError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.dnnl import Dnnl

IMAGE = {"x": (1, 5, 6, 6)}
_NORM = {"s": values(5), "o": values(5, seed=1), "m": values(5, seed=2), "v": values(5, seed=3) + 1}
_CHANNEL = values(5, seed=4)


class Pair(NamedTuple):
    """Nodes of an old opset, and those of today that mean the same."""

    opset: int
    old: list[onnx.NodeProto]
    today: list[onnx.NodeProto]
    constants: Mapping[str, Any] = {}
    inputs: Mapping[str, tuple[int, ...]] = IMAGE
    more: Mapping[str, Any] = {}


def _norm(opset: int, **attributes: object) -> Pair:
    return Pair(
        opset, [node("BatchNormalization", "x s o m v", **attributes)], [node("BatchNormalization", "x s o m v")], _NORM
    )


def _alone(opset: int, op_type: str, given: Mapping[str, object], kept: Mapping[str, object], reads: str = "x") -> Pair:
    return Pair(opset, [node(op_type, reads, **given)], [node(op_type, reads, **kept)])


def _axis(op_type: str, opset: int, constant: Any, axis: int, today: tuple[int, ...]) -> Pair:
    old = [node("Relu", "x", "h"), node(op_type, "h c", broadcast=1, axis=axis)]
    now = [node("Relu", "x", "h"), node(op_type, "h d")]
    return Pair(opset, old, now, {"c": constant}, more={"d": np.asarray(constant).reshape(today)})


_CLIP = {"lo": np.float32(-0.25), "hi": np.float32(0.5)}
_CONV = {"w": values(5, 5, 3, 3), "c": _CHANNEL}
_GATE = [node("GlobalAveragePool", "x", "g"), node("Reshape", "g n", "f")]
_ACTIVATIONS: Mapping[str, Mapping[str, object]] = {
    "Relu": {}, "Sigmoid": {}, "Tanh": {}, "LeakyRelu": {"alpha": 0.1}, "HardSigmoid": {"alpha": 0.3},
}  # fmt: skip
PAIRS: dict[str, Pair] = {
    "a slope for each channel, of as many as columns": Pair(
        6,
        [node("PRelu", "x c")],
        [node("PRelu", "x d")],
        {"c": _CHANNEL},
        {"x": (1, 5, 6, 5)},
        {"d": np.asarray(_CHANNEL).reshape(5, 1, 1)},
    ),
    "normalisation, told it is a test": _norm(6, is_test=1),
    "normalisation, spatial": _norm(6, is_test=1, spatial=1, epsilon=1e-3)._replace(
        today=[node("BatchNormalization", "x s o m v", epsilon=1e-3)]
    ),
    "normalisation, untold": _norm(6),
    "normalisation, consumed inputs": _norm(5, is_test=1, consumed_inputs=[0, 0, 0, 1, 1]),
    "product of matrices and a vector": Pair(
        6,
        [node("Gemm", "x w c", broadcast=1)],
        [node("Gemm", "x w c")],
        {"w": values(5, 4), "c": values(4)},
        {"x": (3, 5)},
    ),
    "product of matrices, transposed": Pair(
        1,
        [node("Gemm", "x w c", broadcast=1, transB=1, alpha=0.5)],
        [node("Gemm", "x w c", transB=1, alpha=0.5)],
        {"w": values(4, 5), "c": values(4)},
        {"x": (3, 5)},
    ),
    **{
        f"{op} of equal shapes, opset {opset}": Pair(
            opset,
            [node(op, "x z", **({"consumed_inputs": [0, 0]} if opset < 6 else {}))],
            [node(op, "x z")],
            inputs={**IMAGE, "z": (1, 5, 6, 6)},
        )
        for op in ("Add", "Mul")
        for opset in (1, 6)
    },
    **{f"{op}, one value a channel": _axis(op, 6, _CHANNEL, 1, (1, 5, 1, 1)) for op in ("Add", "Mul")},
    "addition, from an axis counted from behind": _axis("Add", 6, _CHANNEL, -3, (1, 5, 1, 1)),
    "addition of rows and columns": _axis("Add", 6, values(6, 6), 2, (6, 6)),
    "addition of the last axis, without an axis": Pair(
        6, [node("Add", "x c", broadcast=1)], [node("Add", "x c")], {"c": values(6)}
    ),
    "addition of one number": Pair(6, [node("Mul", "x c", broadcast=1)], [node("Mul", "x c")], {"c": np.float32(0.5)}),
    "biases behind convolutions": Pair(
        6,
        [node("Conv", "x w", "h", pads=[1] * 4), node("Add", "h c", "i", broadcast=1, axis=1), node("Relu", "i", "j"),
         node("Conv", "j w", "k", pads=[1] * 4), node("Add", "k c", broadcast=1, axis=1)],
        [node("Conv", "x w c", "h", pads=[1] * 4), node("Relu", "h", "j"), node("Conv", "j w c", pads=[1] * 4)],
        _CONV,
    ),
    "product with an activation of fewer axes": Pair(
        6,
        [*_GATE, node("Mul", "x f", broadcast=1, axis=0)],
        [node("GlobalAveragePool", "x", "g"), node("Mul", "x g")],
        {"n": np.array([1, 5])},
    ),
    "dropout": Pair(6, [node("Dropout", "x", "h", is_test=1), node("Relu", "h")], [node("Relu", "x")]),
    "dropout, consumed inputs": Pair(
        1, [node("Dropout", "x", "h", is_test=1, ratio=0.5, consumed_inputs=[0]), node("Relu", "h")], [node("Relu", "x")]
    ),
    "reshape by an attribute": Pair(
        1, [node("Relu", "x", "h"), node("Reshape", "h", shape=[1, -1])], [node("Relu", "x", "h"), node("Reshape", "h n")],
        more={"n": np.array([1, -1])},
    ),
    "concatenation without an axis": Pair(3, [node("Concat", "x x")], [node("Concat", "x x", axis=1)]),
    "clip by attributes": Pair(6, [node("Clip", "x", min=-0.25, max=0.5)], [node("Clip", "x lo hi")], more=_CLIP),
    "clip, consumed inputs": Pair(
        1, [node("Clip", "x", min=-0.25, max=0.5, consumed_inputs=[0])], [node("Clip", "x lo hi")], more=_CLIP
    ),
    **{
        f"{op}, consumed inputs": _alone(5, op, {"consumed_inputs": [0]} | kept, kept)
        for op, kept in _ACTIVATIONS.items()
    },
    "sum of three": Pair(5, [node("Sum", "x x x", consumed_inputs=[0, 0, 0])], [node("Sum", "x x x")]),
    "squeeze and unsqueeze": Pair(
        6, [node("Squeeze", "x", "h", axes=[0]), node("Unsqueeze", "h", axes=[0, 1])], [node("Unsqueeze", "x n")],
        more={"n": np.array([0])},
    ),
    "mean over the image": _alone(6, "ReduceMean", {"axes": [2, 3]}, {"axes": [2, 3]}),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_old_forms_mean_what_todays_do(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    pair = PAIRS[name]
    old = write(made(pair.old, pair.inputs, pair.constants, opset=pair.opset), tmp_path / "old.onnx")
    today = write(made(pair.today, pair.inputs, {**pair.constants, **pair.more}, opset=14), tmp_path / "today.onnx")
    assert_runs(dnnl, old, today)
    assert load_onnx(old).shape("y") == load_onnx(today).shape("y")


@pytest.mark.parametrize(
    ("nodes", "constants", "said", "opset"),
    [
        ([node("BatchNormalization", "x s o m v", is_test=0)], _NORM, "in training mode", 6),
        ([node("BatchNormalization", "x s o m v", is_test=1, spatial=0)], _NORM, "of each pixel for itself", 6),
        ([node("Dropout", "x", "h", is_test=0), node("Relu", "h")], {}, "in training mode", 6),
        ([node("Add", "x c", broadcast=1, axis=3)], {"c": values(6, 6)}, "of 2 axes to 4, from axis 3 on", 6),
        ([node("Split", "x n", "y z")], {"n": np.float32([2, 3])}, "with its sizes as an input", 1),
    ],
)
def test_what_meant_another_thing_is_refused(
    tmp_path: Path, nodes: list[onnx.NodeProto], constants: Mapping[str, Any], said: str, opset: int
) -> None:
    path = write(made(nodes, IMAGE, constants, opset=opset), tmp_path / "old.onnx")
    with pytest.raises(ModelError, match=said) as caught:
        load_onnx(path)
    assert caught.value.next_step


def test_a_constant_that_is_read_in_two_shapes_runs_once_stored_twice_as_told(dnnl: Dnnl, tmp_path: Path) -> None:
    def nodes(constant: str) -> list[onnx.NodeProto]:
        return [node("Conv", "x w c", "h", pads=[1] * 4), node("Add", f"h {constant}", broadcast=1, axis=1)]

    with pytest.raises(ModelError, match="'c' from an axis on") as caught:
        load_onnx(write(made(nodes("c"), IMAGE, _CONV, opset=6), tmp_path / "old.onnx"))
    assert "store the constant again under another name" in caught.value.next_step
    twice = write(made(nodes("d"), IMAGE, {**_CONV, "d": _CHANNEL}, opset=6), tmp_path / "twice.onnx")
    today = [node("Conv", "x w c", "h", pads=[1] * 4), node("Add", "h d")]
    like = made(today, IMAGE, {**_CONV, "d": _CHANNEL.reshape(1, 5, 1, 1)}, opset=14)
    assert_runs(dnnl, twice, write(like, tmp_path / "today.onnx"))
