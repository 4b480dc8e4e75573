"""ONNX models of a few nodes, and what `from_onnx` says of those that are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.onnx.read import from_onnx

IMAGE = (1, 4, 8, 8)
node = helper.make_node


def weight(name: str, *shape: int, kind: type = np.float32) -> TensorProto:
    """A constant of this shape."""
    return numpy_helper.from_array(np.full(shape, 0.25, dtype=kind), name)


def integers(name: str, *values: int) -> TensorProto:
    """A constant vector of these numbers."""
    return numpy_helper.from_array(np.array(values, dtype=np.int64), name)


W = weight("w", 6, 4, 3, 3)


def conv(x: str = "x", y: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A convolution named `c` with the weight `w`."""
    return node("Conv", [x, "w"], [y], name="c", **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[TensorProto] = (),
    shape: Sequence[int | str] = IMAGE,
    *,
    output: Sequence[int] | None = None,
    opset: int = 17,
    more: Sequence[tuple[str, Sequence[int]]] = (),
) -> onnx.ModelProto:
    """A model from `x` of this shape to `y`, of which the file says this shape; `more` are further inputs."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), *more)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    body = helper.make_graph(list(nodes), "other", inputs, outputs, list(constants))
    others = sorted({n.domain for n in nodes if n.domain})
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in others)]
    return helper.make_model(body, opset_imports=imports, ir_version=8)


def refused(given: onnx.ModelProto, said: str) -> ModelError:
    """The error in which a model ends, whose message holds these words."""
    with pytest.raises(ModelError, match=said) as caught:
        from_onnx(given, "the file")
    assert caught.value.where.startswith("the file")
    assert caught.value.next_step
    return caught.value


def write_model(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[TensorProto] = (),
    shape: Sequence[int | str] = IMAGE,
    *,
    opset: int = 17,
) -> Path:
    """Write such a model to a file."""
    path.write_bytes(model(nodes, constants, shape, opset=opset).SerializeToString())
    return path
