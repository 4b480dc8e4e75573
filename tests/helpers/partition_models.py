"""Small models whose steps are cut over every dimension, as files with inputs and what they compute whole.

Layers that are cut by channels have more of them than the widest block, which holds 16 with AVX-512 and 8 without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from model_file_runs import made, node, values

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import SeededModel, to_onnx
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.partitioned.program import Assignment, Split, partition
from edgeplan.runtime.partitioned.sections import Dimension, extent, why_not_cut
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.runtime.program import activation_layouts, default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.registry import Workload, recurrent_language_model
from edgeplan.workloads.sequences import bert

Array = npt.NDArray[Any]


def images(batch: int = 1) -> Graph:
    """Windows of all kinds, a residual sum, branches, and a layer behind."""
    b = GraphBuilder("images", (batch, 3, 21, 19))
    x = b.conv_bn(b.input, 24, 3, 2)
    y = b.conv_bn(x, 24, 3)
    x = b.relu(b.add(b.conv(y, 24, 1), x))
    x = b.maxpool(x, 3, 2, 1)
    x = b.concat([b.conv_bn(x, 16, 1), b.avgpool(x, 3, 1, 1), b.relu(b.dwconv(x, 5))])
    x = b.add(b.lrn(x), b.activation(x, "hswish"))
    x = b.upsample(b.conv(x, 10, 3))
    return b.build(b.fc(b.flatten(b.gap(x)), 24))


def products_with_itself() -> Exported:
    """Products that read one tensor twice, as it is and transposed."""
    nodes = [node("Transpose", "x", "t", perm=[0, 2, 1]), node("MatMul", "x t", "0"), node("MatMul", "0 0")]
    return Exported(made(nodes, {"x": (2, 24, 40)}), {})


def factors() -> Exported:
    """A convolution with a factor and a summand behind it, and linear layers of stored and of transposed weights."""
    nodes = [
        node("Conv", "x kernel", "0", pads=[1, 1, 1, 1]), node("Mul", "0 factor", "1"), node("Add", "1 summand", "2"),
        node("GlobalAveragePool", "2", "3"), node("Flatten", "3", "4"), node("MatMul", "4 stored", "5"),
        node("Gemm", "5 transposed bias", transB=1),
    ]  # fmt: skip
    shapes = {
        "kernel": (40, 16, 3, 3), "factor": (1, 40, 1, 1), "summand": (40, 1, 1), "stored": (40, 48), "transposed": (56, 48),
        "bias": (1, 56),
    }  # fmt: skip
    constants = {name: values(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    return Exported(made(nodes, {"x": (1, 16, 6, 6)}, constants), {})


MODELS: Mapping[str, Callable[[], Workload]] = {
    "images": images,
    "three of them": partial(images, 3),
    "attention": partial(bert, tokens=9, layers=2, width=72, heads=3, hidden=80, vocabulary=97, batch=2),
    "attention of one": partial(bert, tokens=9, layers=1, width=72, heads=3, hidden=80, vocabulary=97),
    "with itself": products_with_itself,
    "factors": factors,
    "recurrent": partial(recurrent_language_model, "lstm", "LSTM", batch=16, vocabulary=97, embedding=12, hidden=8),
}


class Saved:
    """A model as a file, with inputs."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        written = to_onnx(workload, 1) if isinstance(workload, Graph) else workload.seeded(1).whole()
        self.path = SeededModel(written).save(folder / "model.onnx")
        self.graph, self.lowered = read_model(self.path)
        rng = np.random.default_rng(2)
        self.inputs: dict[str, Array] = {}
        for name in self.lowered.inputs:
            shape = self.lowered.shapes[name]
            ids = rng.integers(0, 2, shape).astype(self.lowered.types.get(name, "int64"))
            self.inputs[name] = ids if name in self.lowered.types else rng.standard_normal(shape).astype(np.float32)

    def whole(self, dnnl: Dnnl, home: str) -> dict[str, Array]:
        """Outputs of the steps as they are."""
        dnnl.set_threads(1)  # which kernels it offers depends on it, and another test may have left more
        return SequentialSession(dnnl, default_program(dnnl, self.path, self.graph, home), self.path.parent).run(self.inputs)

    def cut(self, home: str, assignments: Sequence[Assignment]) -> dict[str, Array]:
        """Outputs of both parts of the steps, which the CPU computes here."""
        return cut_outputs(self.path, self.lowered, self.inputs, home, assignments)


def cut_outputs(
    model: Path, lowered: Lowered, inputs: Mapping[str, Array], home: str, assignments: Sequence[Assignment]
) -> dict[str, Array]:
    """What a partition computes whose lanes are one processor's, one after the other."""
    with OnednnProcessor() as cpu:
        made = partition(lowered, activation_layouts(lowered, home), cpu.dnnl.info.block, assignments)
        nothing = (0,) * len(made.lanes)
        with PairSession.of(cpu, cpu, replace(made, lanes=nothing, needed=nothing), model) as session:
            return session.run(inputs)


def split_all(lowered: Lowered, home: str, block: int, dimension: Dimension, share: float) -> list[Assignment]:
    """Every step that can be cut, near a share; the others on the CPU."""
    layouts = activation_layouts(lowered, home)

    def one(step: Step) -> Assignment:
        if why_not_cut(lowered, layouts, block, step, dimension):
            return 0
        return Split(extent(lowered, block, step, dimension).nearest(share), dimension)

    return [one(step) for step in lowered.steps]


@st.composite
def meshes(draw: st.DrawFn) -> Graph:
    """A random net of convolutions, sums, products, concatenations and views, with a linear layer behind or not."""
    b = GraphBuilder("mesh", (1, draw(st.sampled_from([5, 16])), 6, 6))
    values = [b.conv(b.input, draw(st.sampled_from([20, 24, 32])), 1)]
    for _ in range(draw(st.integers(2, 9))):
        one, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        which = draw(st.sampled_from(["conv", "conv", "relu", "add", "mul", "pool", "concat", "depthwise", "view"]))
        if which == "conv":
            values.append(b.relu(b.conv(one, b.channels(values[0]), draw(st.sampled_from([1, 3])), bias=draw(st.booleans()))))
        elif which == "depthwise":
            values.append(b.dwconv(one, 3))
        elif which == "relu":
            values.append(b.relu(one))
        elif which == "pool":
            values.append(b.maxpool(one, 3, 1, 1))
        elif which == "view":
            values.append(b.reshape(b.relu(b.reshape(one, (1, b.channels(one), 36))), (1, b.channels(one), 6, 6)))
        elif which == "concat":
            values.append(b.conv(b.concat([one, other]), b.channels(values[0]), 1))
        else:
            values.append((b.add if which == "add" else b.mul)(one, other))
    if draw(st.booleans()):
        values.append(b.relu(b.fc(b.flatten(b.gap(values[-1])), draw(st.sampled_from([24, 40])))))
    return b.build(*dict.fromkeys(values[-2:]))
