"""Narrow models of the families that are partitioned, and partitions drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.processor import Processor
from edgeplan.runtime.ranges import channels_of, why_not_split


def resnet() -> Graph:
    """ResNet-18, an eighth as wide, on images of 64 pixels."""
    b = GraphBuilder("resnet", (1, 3, 64, 64))
    x = b.maxpool(b.conv_bn(b.input, 16, 7, 2), 3, 2, 1)
    for width, stride in ((16, 1), (24, 2), (32, 2), (64, 2)):
        for block in range(2):
            s = stride if block == 0 else 1
            short = b.conv_bn(x, width, 1, s, act="") if b.channels(x) != width else x
            x = b.relu(b.add(b.conv_bn(b.conv_bn(x, width, 3, s), width, 3, act=""), short))
    return b.build(b.fc(b.flatten(b.gap(x)), 40))


def squeezenet() -> Graph:
    """Fire modules, and a last convolution of classes that fill no block."""
    b = GraphBuilder("squeezenet", (1, 3, 48, 48))
    x = b.maxpool(b.relu(b.conv(b.input, 32, 3, 2, bias=True)), 3, 2, 1)
    for squeezed, expanded in ((16, 24), (16, 32), (24, 48)):
        x = b.relu(b.conv(x, squeezed, 1, bias=True))
        x = b.concat([b.relu(b.conv(x, expanded, kernel, bias=True)) for kernel in (1, 3)])
    return b.build(b.softmax(b.flatten(b.gap(b.relu(b.conv(x, 52, 1, bias=True))))))


def mobilenet() -> Graph:
    """MobileNetV2: expanded depthwise blocks."""
    b = GraphBuilder("mobilenet", (1, 3, 32, 32))
    x = b.conv_bn(b.input, 16, 3, 2, act="relu6")
    for out, stride in ((16, 1), (24, 2), (24, 1), (40, 2)):
        wide = 4 * b.channels(x)
        y = b.conv_bn(b.conv_bn(x, wide, 1, act="relu6"), wide, 3, stride, groups=wide, act="relu6")
        y = b.conv_bn(y, out, 1, act="")
        x = b.add(y, x) if b.shape(y) == b.shape(x) else y
    return b.build(b.fc(b.flatten(b.gap(b.conv_bn(x, 80, 1, act="relu6"))), 24))


def inception() -> Graph:
    """Modules of four branches, asymmetric kernels among them."""
    b = GraphBuilder("inception", (1, 3, 35, 35))
    x = b.conv_bn(b.conv_bn(b.input, 16, 3, 2), 32, 3)
    for _ in range(2):
        a = b.conv_bn(x, 16, 1)
        c = b.conv_bn(b.conv_bn(x, 16, 1), 24, 5)
        d = b.relu(b.bn(b.conv(b.relu(b.bn(b.conv(b.conv_bn(x, 16, 1), 24, (1, 7)))), 24, (7, 1))))
        x = b.concat([a, c, d, b.conv_bn(b.avgpool(x, 3, 1, 1), 16, 1)])
    return b.build(b.fc(b.flatten(b.gap(x)), 16))


def vgg() -> Graph:
    """VGG16, narrow, on images of 32 pixels."""
    b = GraphBuilder("vgg", (1, 3, 32, 32))
    x = b.input
    for width, count in ((16, 2), (24, 2), (32, 3), (48, 3)):
        for _ in range(count):
            x = b.relu(b.conv(x, width, 3, bias=True))
        x = b.maxpool(x, 2, 2)
    x = b.flatten(x)
    for columns in (96, 64):
        x = b.relu(b.fc(x, columns))
    return b.build(b.fc(x, 24))


#: Name -> graph.
FAMILIES: Mapping[str, Callable[[], Graph]] = {
    function.__name__: function for function in (resnet, squeezenet, mobilenet, inception, vgg)
}


def linear_layers(folder: Path) -> tuple[Path, Graph]:
    """Linear layers of several rows, one of stored and one of transposed weights, and a sum of both."""
    rng = np.random.default_rng(5)
    weights = {
        "first": rng.standard_normal((48, 64)) / 7,
        "second": rng.standard_normal((56, 64)) / 8,
        "bias": rng.standard_normal(56),
        "third": rng.standard_normal((56, 56)) / 7,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["b"], "b"),
        helper.make_node("Gemm", ["b", "second", "bias"], ["c"], "c", transB=1),
        helper.make_node("MatMul", ["c", "third"], ["d"], "d"),
        helper.make_node("Add", ["d", "c"], ["e"], "e"),
        helper.make_node("Relu", ["e"], ["y"], "y"),
    ]
    return _stored(folder, "linear_layers", nodes, [("x", TensorProto.FLOAT, (13, 48))], [("y", (13, 56))], weights)


def embedding(folder: Path) -> tuple[Path, Graph]:
    """Rows of a table, picked by indices, and a linear layer of them; the table is handed out, too."""
    rng = np.random.default_rng(6)
    weights = {"table": rng.standard_normal((10, 24)), "weight": rng.standard_normal((24, 40)) / 5}
    nodes = [
        helper.make_node("Gather", ["table", "which"], ["rows"], "rows"),
        helper.make_node("MatMul", ["rows", "weight"], ["y"], "y"),
        helper.make_node("Identity", ["table"], ["known"], "known"),
    ]
    inputs, outputs = [("which", TensorProto.INT64, (4,))], [("known", (10, 24)), ("y", (4, 40))]
    return _stored(folder, "embedding", nodes, inputs, outputs, weights)


def _stored(
    folder: Path,
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, tuple[int, ...]]],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    weights: Mapping[str, np.ndarray],
) -> tuple[Path, Graph]:
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info(*one) for one in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()],
    )
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path, load_onnx(path)


def saved(name: str, folder: Path) -> tuple[Path, Graph]:
    """A model of a family as a file."""
    if name in ("linear_layers", "embedding"):
        return {"linear_layers": linear_layers, "embedding": embedding}[name](folder)
    graph = FAMILIES[name]()
    return save_onnx(graph, folder / f"{name}.onnx"), graph


def drawn(
    lowered: Lowered, layouts: Mapping[str, str], block: int, gpu: Processor, rng: np.random.Generator, split: float = 0.6
) -> list[Assignment]:
    """Where each step runs: at random, but for what the second processor refuses."""
    found: list[Assignment] = []
    for step in lowered.steps:
        if gpu.refuses(lowered, step, layouts):
            found.append(0)
        elif not why_not_split(lowered, layouts, block, step) and rng.random() < split:
            found.append(Split(int(rng.choice(range(block, channels_of(lowered, step), block)))))
        else:
            found.append(int(rng.integers(2)))
    return found
