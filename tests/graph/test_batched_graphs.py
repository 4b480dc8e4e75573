"""A network for several images computes for each what the network for one does; what says how many there are is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from edgeplan.errors import ParamsError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import batched, simplify
from edgeplan.zoo import FAMILIES, build_variant, variants


@pytest.mark.parametrize("family", ["alexnet", "googlenet", "mobilenetv3", "shufflenetv2", "nasbench201"])
def test_each_image_of_a_batch_is_computed_as_alone(family: str, tmp_path: Path) -> None:
    one = simplify(build_variant(next(iter(variants(FAMILIES[family], 1, 5)))))
    several = batched(one, one.name, 3)
    images = np.random.default_rng(1).standard_normal((3, *one.shape(one.inputs[0])[1:])).astype(np.float32)
    found = []
    for graph, given in ((one, images[1:2]), (several, images)):
        path = save_onnx(graph, tmp_path / f"{len(given)}.onnx")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (out,) = session.run(None, {graph.inputs[0]: given})
        found.append(out)
    assert found[1].shape[0] == 3
    np.testing.assert_allclose(found[1][1:2], found[0], rtol=1e-3, atol=1e-4 * np.abs(found[0]).max())


def _operator(op_type: str, out: tuple[int, ...], **attributes: Attribute) -> Graph:
    tensors = {"x": Tensor("x", (1, 4, 6, 6)), "y": Tensor("y", out)}
    return Graph("fixed", (Operator(op_type, op_type, ("x",), ("y",), (), attributes),), ("x",), ("y",), tensors)


@pytest.mark.parametrize(
    "graph",
    [
        _operator("Transpose", (4, 1, 6, 6), perm=(1, 0, 2, 3)),
        _operator("Reshape", (4, 36), shape=(4, 36)),
        _operator("Flatten", (1, 144), axis=0),
        _operator("Resize", (1, 4, 12, 12), sizes=(1, 4, 12, 12)),
        _operator("Softmax", (1, 4, 6, 6), axis=0),
    ],
    ids=lambda graph: graph.operators[0].op_type,
)
def test_what_moves_the_axis_of_images_or_says_their_number_is_refused(graph: Graph) -> None:
    with pytest.raises(ParamsError, match=f"operators {graph.operators[0].op_type}"):
        batched(graph, "several", 2)
