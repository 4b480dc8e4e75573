"""Steps cut over batch, rows, elements and channels compute what they compute whole; what cannot be cut is refused in words."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_models import MODELS, Saved, images, meshes, split_all

from depth import examples
from doubles import QueueProcessor
from edgeplan.engines.base import random_inputs
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, HOMES, NCHW, NHWC
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split, partition
from edgeplan.runtime.partitioned.sections import Dimension, Extent, extent, why_not_cut
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.program import activation_layouts, plan_buffers
from edgeplan.runtime.ranges import cut_ranges
from edgeplan.testing.engines import reference_outputs, require_close
from edgeplan.workloads.registry import Workload

Array = npt.NDArray[Any]
_BLOCK = 8


#: Kinds of which at least one step is cut, by model, home layout and dimension.
_CUT: Mapping[tuple[str, str, Dimension], set[str]] = {
    ("images", BLOCKED, Dimension.rows): {"conv", "pool", "concat", "lrn", "eltwise"},
    ("images", NHWC, Dimension.rows): {"conv", "pool", "concat", "lrn"},
    ("images", NHWC, Dimension.elements): {"binary", "eltwise"},
    ("images", BLOCKED, Dimension.elements): {"binary", "eltwise"},
    ("images", BLOCKED, Dimension.channels): {"conv", "fc"},
    ("three of them", BLOCKED, Dimension.batch): {"conv", "pool", "concat", "lrn", "fc", "resize"},
    ("three of them", NHWC, Dimension.batch): {"conv", "pool", "concat", "lrn", "fc", "resize"},
    ("three of them", NCHW, Dimension.rows): {"conv", "pool", "concat", "lrn"},
    ("three of them", BLOCKED, Dimension.rows): {"conv", "pool", "concat", "lrn"},
    ("attention", BLOCKED, Dimension.batch): {"fc", "layer_norm", "binary"},
    ("attention", NCHW, Dimension.batch): {"matmul", "fc", "softmax", "layer_norm", "binary"},
    ("attention of one", NCHW, Dimension.batch): {"matmul"},
    ("attention", NCHW, Dimension.rows): {"matmul", "fc", "softmax", "layer_norm"},
    ("attention", NCHW, Dimension.channels): {"matmul", "fc"},
    ("attention of one", NCHW, Dimension.elements): {"binary"},
    ("with itself", NCHW, Dimension.batch): {"matmul"},
    ("with itself", NCHW, Dimension.rows): {"matmul"},
    ("with itself", NCHW, Dimension.channels): {"matmul"},
    ("recurrent", NCHW, Dimension.rows): {"fc"},
    ("factors", BLOCKED, Dimension.channels): {"conv", "fc"},
}


@pytest.mark.parametrize(("name", "home", "dimension"), _CUT)
def test_parts_compute_what_the_whole_computes(dnnl: Dnnl, tmp_path: Path, name: str, home: str, dimension: Dimension) -> None:
    model = Saved(MODELS[name](), tmp_path)
    assignments = split_all(model.lowered, home, dnnl.info.block, dimension, 0.4)
    kinds = {s.kind for s, a in zip(model.lowered.steps, assignments, strict=True) if isinstance(a, Split)}
    assert kinds >= _CUT[name, home, dimension]
    expected, found = model.whole(dnnl, home), model.cut(home, assignments)
    # Another number of rows may be another kernel of a product, which sums in another order; else no bit differs.
    products = {"fc", "matmul"} & kinds
    for output, values in expected.items():
        if products:
            np.testing.assert_allclose(found[output], values, rtol=1e-5, atol=2e-6 * np.abs(values).max())
        else:
            np.testing.assert_array_equal(found[output], values)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    channels=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    size=st.tuples(st.integers(5, 14), st.integers(5, 9)),
    batch=st.integers(1, 2),
    home=st.sampled_from(HOMES),
    share=st.floats(0, 1),
    pool=st.booleans(),
)
def test_rows_of_any_window(
    dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory, channels: tuple[int, int], kernel: int, stride: int,
    size: tuple[int, int], batch: int, home: str, share: float, pool: bool,
) -> None:  # fmt: skip
    b = GraphBuilder("window", (batch, 3, *size))
    x = b.conv(b.input, channels[0], 1)
    x = b.maxpool(x, kernel, stride, kernel // 2) if pool else b.relu(b.conv(x, channels[1], kernel, stride))
    model = Saved(b.build(b.conv(x, 8, 1)), tmp_path_factory.mktemp("window"))
    assignments = split_all(model.lowered, home, dnnl.info.block, Dimension.rows, share)
    expected, found = model.whole(dnnl, home), model.cut(home, assignments)
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=1e-5, atol=1e-6)


def _reasons(workload: Workload, tmp_path: Path, dimension: Dimension, home: str = BLOCKED) -> Counter[str]:
    lowered = Saved(workload, tmp_path).lowered
    layouts = activation_layouts(lowered, home)
    return Counter(f"{s.kind}: {why_not_cut(lowered, layouts, _BLOCK, s, dimension)}" for s in lowered.steps)


def test_what_cannot_be_cut_is_said_in_words(tmp_path: Path) -> None:
    pictures, recurrent = images(), MODELS["recurrent"]()
    assert set(_reasons(pictures, tmp_path, Dimension.batch)) == {
        f"{kind}: a batch of 1" for kind in ("conv", "pool", "concat", "lrn", "binary", "eltwise", "fc", "resize")
    }
    rows = _reasons(pictures, tmp_path, Dimension.rows)
    assert rows["fc: its rows are images"] == 1
    assert rows["pool: one row"] == 1
    assert rows["resize: rows of what it writes need others of what it reads"] == 1
    assert "conv: depthwise" in _reasons(pictures, tmp_path, Dimension.channels)
    by_pixels = _reasons(pictures, tmp_path, Dimension.channels, NHWC)
    assert any(why.endswith(": its output is not dense by channels") for why in by_pixels)
    elements = _reasons(pictures, tmp_path, Dimension.elements)
    assert elements["conv: a conv does not compute each element for itself"] >= 6
    recurrent_rows = _reasons(recurrent, tmp_path, Dimension.rows)
    assert recurrent_rows["lstm: a recurrent layer, whose states follow each other"] == 2
    assert _reasons(recurrent, tmp_path, Dimension.channels)["lstm: neither a convolution nor a linear layer"] == 2


@pytest.mark.parametrize(
    ("dimension", "end", "said"),
    [
        (Dimension.batch, 1, "over its batch: a batch of 1"),
        (Dimension.rows, 11, r"its parts end at \[11\], not between 0 and 11"),
        (Dimension.rows, 0, r"its parts end at \[0\], not between 0 and 11"),
        (Dimension.channels, 4, r"its parts end at \[4\], not at"),
        (Dimension.channels, 24, r"its parts end at \[24\], not between 0 and 24"),
        (Dimension.elements, 16, "a conv does not compute each element for itself"),
    ],
)
def test_a_cut_that_is_none_is_refused(tmp_path: Path, dimension: Dimension, end: int, said: str) -> None:
    lowered = Saved(images(), tmp_path).lowered
    layouts = activation_layouts(lowered, BLOCKED)
    assignments: list[Assignment] = [Split(end, dimension), *[0] * (len(lowered.steps) - 1)]
    with pytest.raises(ModelError, match=said):
        partition(lowered, layouts, _BLOCK, assignments)
    with pytest.raises(ModelError, match=r"(\d+) assignments for (?!\1)\d+ steps"):
        partition(lowered, layouts, _BLOCK, assignments[:-1])


@pytest.mark.parametrize(("share", "end"), [(0, 16), (0.01, 16), (0.5, 48), (0.99, 80), (1, 80)])
def test_the_end_nearest_to_a_share_leaves_something_for_both(share: float, end: int) -> None:
    assert Extent(96, 16).nearest(share) == end


def test_streamed_parts_of_factors_are_of_their_channels(tmp_path: Path) -> None:
    """Also where they have an axis before that of the channels."""
    lowered = Saved(MODELS["factors"](), tmp_path).lowered
    found = cut_ranges(lowered, activation_layouts(lowered, BLOCKED), 8, lambda _: 1)
    parts = [(part.axis, part.start, part.stop) for part in found.weights.values() if part.whole == "factor"]
    assert parts == [(1, 8 * k, 8 * k + 8) for k in range(5)]


# Partitions of random graphs

_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@st.composite
def partitions(draw: st.DrawFn, graph: Graph, block: int) -> tuple[Lowered, Partitioned]:
    """A random partition."""
    lowered = lower(graph)
    layouts = activation_layouts(lowered, BLOCKED)
    assignments: list[Assignment] = []
    for step in lowered.steps:
        options: list[Assignment] = [0, 1]
        for dimension in Dimension:
            if not why_not_cut(lowered, layouts, block, step, dimension):
                ends = extent(lowered, block, step, dimension)
                options += [Split(end, dimension) for end in {ends.nearest(share) for share in (0.2, 0.5, 0.9)}]
        assignments.append(draw(st.sampled_from(options)))
    return lowered, partition(lowered, layouts, block, assignments)


@settings(_quick, max_examples=examples(120))
@given(data=st.data(), graph=meshes(), block=st.sampled_from([8, 16]))
def test_steps_follow_each_other_in_the_memory_of_the_whole(data: st.DataObject, graph: Graph, block: int) -> None:
    """A step starts when all of the step before has ended: what it reads is written, and what it writes over is read.

    So activations lie where they do without any part.
    """
    lowered, found = data.draw(partitions(graph, block))
    lanes, origin = [found.of(lane) for lane in (0, 1)], found.ranged.origin
    earlier: list[set[int]] = []
    for k, (lane, needed) in enumerate(zip(found.lanes, found.needed, strict=True)):
        direct = {*lanes[lane][: lanes[lane].index(k)], *lanes[1 - lane][:needed]}
        assert all(j < k for j in direct), "the program's order fits both lanes"
        earlier.append(direct.union(*(earlier[j] for j in direct)))
        assert {j for j in range(len(origin)) if origin[j] < origin[k]} <= earlier[k]
    offsets, size = plan_buffers(lowered, activation_layouts(lowered, BLOCKED), block)
    if all(step.kind not in ("cut_rows", "paste_rows") for step in found.ranged.lowered.steps):  # copies of rows take more
        assert found.arena_bytes == size
        assert {tensor: found.offsets[tensor] for tensor in offsets} == dict(offsets)


@pytest.fixture(scope="module")
def doubled() -> Iterator[tuple[OnednnProcessor, QueueProcessor]]:
    try:
        with OnednnProcessor() as cpu, QueueProcessor() as gpu:
            yield cpu, gpu
    except DeviceError as error:
        pytest.skip(error.what)


@settings(_quick, max_examples=examples(30))
@given(data=st.data(), graph=meshes(), synchronisation=st.sampled_from(Synchronisation))
def test_random_partitions_compute_what_the_graph_does(
    doubled: tuple[OnednnProcessor, QueueProcessor],
    data: st.DataObject,
    graph: Graph,
    synchronisation: Synchronisation,
) -> None:
    cpu, gpu = doubled
    _, found = data.draw(partitions(graph, cpu.dnnl.info.block))
    with tempfile.TemporaryDirectory() as folder:
        model = save_onnx(graph, Path(folder) / "model.onnx")
        with PairSession.of(cpu, gpu, found, model, synchronisation) as session:
            for _ in range(2):
                outputs = session.run(random_inputs(graph))
                wanted = reference_outputs(graph)
                largest = max(np.abs(value).max() for value in wanted.values())
                if np.isfinite(largest):
                    require_close(outputs, wanted, 1e-4)
