"""Features of all parts of a layer in one pass are those of each part dispatched alone, to the last bit."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeplan.chapters.partition.layers import CONV, LINEAR, LayerShape
from edgeplan.chapters.partition.learning.features import part_matrix, shape_matrix
from edgeplan.chapters.partition.learning.predictors import augmented
from edgeplan.opencl.launch import DeviceNumbers
from edgeplan.opencl.processor import OpenclDispatcher
from edgeplan.runtime.processor import Dispatcher

_NUMBERS = tuple(DeviceNumbers(*one) for one in ((1, 16, 16, 4096), (4, 4, 8, 256), (2, 8, 8, 64), (20, 4, 16, 32)))
_convolutions = st.builds(
    LayerShape, st.just(CONV), st.integers(1, 60), st.integers(1, 60), st.integers(1, 300), st.integers(2, 600),
    st.sampled_from((1, 3, 5)), st.sampled_from((1, 2)), st.sampled_from((0, 0, 1, 7)),
)  # fmt: skip
_linear = st.builds(LayerShape.linear, st.integers(1, 200), st.integers(1, 2000), st.integers(2, 3000))


@settings(max_examples=60)
@given(st.one_of(_convolutions, _linear), st.sampled_from(_NUMBERS), st.integers(1, 40))
def test_one_pass_gives_what_each_part_gives(layer: LayerShape, numbers: DeviceNumbers, step: int) -> None:
    dispatcher = OpenclDispatcher(asdict(numbers))
    outputs = (layer.outputs, *range(step, layer.outputs, max(step, layer.outputs // 20)))
    parts = [layer.part(count) for count in outputs]
    found = dispatcher.of_parts(layer.step("m"), layer.shapes("m"), layer.layouts("m"), outputs)
    assert found is not None
    names, matrix = augmented(parts, dispatcher)
    assert found[0] == names
    shapes = part_matrix(layer, outputs)
    np.testing.assert_array_equal(shapes, shape_matrix(parts))
    np.testing.assert_array_equal(np.column_stack([shapes, found[1]]), matrix)


def test_what_has_no_one_pass_is_asked_for_part_by_part() -> None:
    layer = LayerShape(CONV, 8, 8, 32, 64, 3)
    given_to = layer.step("m"), layer.shapes("m"), layer.layouts("m")
    assert OpenclDispatcher(asdict(_NUMBERS[0])).of_parts(*given_to, ()) is None
    assert Dispatcher({"block": 8}).of_parts(*given_to, (16,)) is None
    huge = LayerShape(LINEAR, 1 << 20, 1, 64, 1024)
    asked = huge.step("m"), huge.shapes("m"), huge.layouts("m"), (16, 1024)
    assert OpenclDispatcher(asdict(_NUMBERS[0])).of_parts(*asked) is None, "its output has too many elements"


def test_pointwise_parts_have_tiles_of_their_own() -> None:
    layer = LayerShape(CONV, 28, 28, 64, 16 * 24, 1)
    asked = layer.step("m"), layer.shapes("m"), layer.layouts("m"), tuple(range(16, layer.outputs, 16))
    found = OpenclDispatcher(asdict(_NUMBERS[0])).of_parts(*asked)
    assert found is not None
    assert len(set(found[1][:, OpenclDispatcher.features.index("tile_channels")])) == 2
