"""Steps cut over batch, rows, elements and channels compute what they compute whole; what cannot be cut is refused in words."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_models import MODELS, Saved, images, split_all

from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, HOMES, NCHW, NHWC
from edgeplan.runtime.partitioned.program import Assignment, Split, partition
from edgeplan.runtime.partitioned.sections import Cut, Dimension, Extent, cut_sections, extent, why_not_cut
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.ranges import cut_ranges
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
    expected, found = model.whole(dnnl, home), model.cut(dnnl, home, assignments)
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
    expected, found = model.whole(dnnl, home), model.cut(dnnl, home, assignments)
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
    elements = _reasons(pictures, tmp_path, Dimension.elements)
    assert elements["conv: a conv does not compute each element for itself"] >= 6
    recurrent_rows = _reasons(recurrent, tmp_path, Dimension.rows)
    assert recurrent_rows["lstm: a recurrent layer, whose states follow each other"] == 2
    assert _reasons(recurrent, tmp_path, Dimension.channels)["lstm: neither a convolution nor a linear layer"] == 2


def test_a_product_is_never_cut_along_what_it_sums_over(tmp_path: Path) -> None:
    model = Saved(MODELS["attention"](), tmp_path)
    layouts = activation_layouts(model.lowered, NCHW)
    for step in model.lowered.steps:
        if step.kind == "matmul":
            for dimension in (Dimension.batch, Dimension.rows, Dimension.channels):
                if why_not_cut(model.lowered, layouts, _BLOCK, step, dimension):
                    continue
                end = extent(model.lowered, _BLOCK, step, dimension).nearest(0.5)
                cuts = [Cut(dimension, (end,)) if s is step else None for s in model.lowered.steps]
                made = cut_sections(model.lowered, layouts, _BLOCK, cuts)
                parts = [s for s in made.ranged.lowered.steps if s.name.startswith(f"{step.name}[")]
                summed = {s.sizes("read_0")[len(s.sizes("read_0")) // 2 - 1] for s in parts if "read_0" in s.settings}
                assert len(parts) == 2
                assert len(summed) <= 1


@pytest.mark.parametrize(
    ("dimension", "end", "said"),
    [
        (Dimension.batch, 1, "over its batch: a batch of 1"),
        (Dimension.rows, 11, r"its parts end at \[11\], not between 0 and 11"),
        (Dimension.rows, 0, r"its parts end at \[0\], not between 0 and 11"),
        (Dimension.channels, 4, r"its parts end at \[4\], not at"),
        (Dimension.elements, 16, "a conv does not compute each element for itself"),
    ],
)
def test_a_cut_that_is_none_is_refused(tmp_path: Path, dimension: Dimension, end: int, said: str) -> None:
    lowered = Saved(images(), tmp_path).lowered
    assignments: list[Assignment] = [0] * len(lowered.steps)
    assignments[0] = Split(end, dimension)
    with pytest.raises(ModelError, match=said):
        partition(lowered, activation_layouts(lowered, BLOCKED), _BLOCK, assignments)


@pytest.mark.parametrize(("share", "end"), [(0, 16), (0.01, 16), (0.5, 48), (0.99, 80), (1, 80)])
def test_the_end_nearest_to_a_share_leaves_something_for_both(share: float, end: int) -> None:
    assert Extent(96, 16).nearest(share) == end


def test_copies_of_rows_run_with_their_part_and_wait_for_what_wrote_the_rows(tmp_path: Path) -> None:
    lowered = Saved(images(), tmp_path).lowered
    layouts = activation_layouts(lowered, BLOCKED)
    assignments = split_all(lowered, BLOCKED, _BLOCK, Dimension.rows, 0.5)
    made = partition(lowered, layouts, _BLOCK, assignments)
    steps, origin = made.ranged.lowered.steps, made.ranged.origin
    copies = [k for k, step in enumerate(steps) if step.kind in ("cut_rows", "paste_rows")]
    assert copies
    assert {made.lanes[k] for k in copies} == {0, 1}
    for k in copies:
        lane = [origin[j] for j in made.of(made.lanes[k])]
        first, count = lane.index(origin[k]), lane.count(origin[k])
        assert lane[first : first + count] == [origin[k]] * count, "a copy stands apart from its part"
    done = dict.fromkeys((0, 1), 0)
    for k, of in enumerate(made.lanes):
        assert made.needed[k] <= done[1 - of]
        done[of] += 1


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[OnednnProcessor, OpenclProcessor]]:
    """Two processors on the first and the last core."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        with (
            OnednnProcessor(cores[:1]) as cpu,
            OpenclProcessor(OpenclOptions(cores=tuple(cores[-1:])), cpu.dnnl.info.block) as gpu,
        ):
            yield cpu, gpu
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.mark.parametrize(
    ("name", "home", "dimension"),
    [
        ("images", BLOCKED, Dimension.rows),
        ("images", BLOCKED, Dimension.elements),
        ("three of them", BLOCKED, Dimension.batch),
        ("three of them", BLOCKED, Dimension.rows),
        ("attention", NCHW, Dimension.batch),
        ("attention", NCHW, Dimension.rows),
        ("attention", NCHW, Dimension.channels),
    ],
)
def test_both_processors_compute_parts_of_a_step(
    pair: tuple[OnednnProcessor, OpenclProcessor], tmp_path: Path, name: str, home: str, dimension: Dimension
) -> None:
    cpu, gpu = pair
    model = Saved(MODELS[name](), tmp_path)
    layouts = activation_layouts(model.lowered, home)
    assignments = split_all(model.lowered, home, cpu.dnnl.info.block, dimension, 0.4)
    for k, step in enumerate(model.lowered.steps):
        if gpu.refuses(model.lowered, step, layouts):
            assignments[k] = 0
        elif assignments[k] == 0:
            assignments[k] = 1
    assert sum(isinstance(a, Split) for a in assignments) > 1
    made = partition(model.lowered, layouts, cpu.dnnl.info.block, assignments)
    expected = model.whole(cpu.dnnl, home)
    with PairSession.of(cpu, gpu, made, model.path, Synchronisation.events) as session:
        session.run(model.inputs)
        found = session.run(model.inputs)
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=1e-4, atol=1e-5 * np.abs(values).max())


def test_streamed_parts_of_factors_are_of_their_channels(tmp_path: Path) -> None:
    """Also where they have an axis before that of the channels."""
    lowered = Saved(MODELS["factors"](), tmp_path).lowered
    found = cut_ranges(lowered, activation_layouts(lowered, BLOCKED), 8, lambda _: 1)
    parts = [(part.axis, part.start, part.stop) for part in found.weights.values() if part.whole == "factor"]
    assert parts == [(1, 8 * k, 8 * k + 8) for k in range(5)]
