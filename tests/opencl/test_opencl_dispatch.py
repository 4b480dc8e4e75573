"""Which kernels are launched for a step: a pure function, tested without OpenCL."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pytest

from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import PostOp, Setting, Step
from edgeplan.opencl.dispatch import alternative_dispatches, dispatch, refusal
from edgeplan.opencl.launch import FEATURES, ArenaOffset, DeviceNumbers, Dispatch, GpuNumbers, Memory
from edgeplan.runtime.layouts import BLOCKED, NCHW, NHWC

_NUMBERS = (
    DeviceNumbers(units=1, vector=8, block=8, work_group=4096),
    DeviceNumbers(units=6, vector=4, block=16, work_group=256),
    DeviceNumbers(units=132, vector=16, block=16, work_group=1),
)


def _conv(
    channels: tuple[int, int],
    size: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    posts: tuple[PostOp, ...] = (),
    layout: str = BLOCKED,
    batch: int = 1,
) -> tuple[Step, Mapping[str, Shape], Mapping[str, str]]:
    pad = kernel // 2
    after = (size + 2 * pad - kernel) // stride + 1
    settings: dict[str, Setting] = {"groups": groups, "kernel": (kernel, kernel), "strides": (stride, stride)}
    settings |= {"dilations": (1, 1), "pads_before": (pad, pad), "pads_after": (pad, pad)}
    weights = MappingProxyType({"weight": "w", "bias": "b"})
    step = Step("s", "conv", ("s",), ("x",), ("y",), weights, MappingProxyType(settings), posts)
    out = (batch, channels[1], after, after)
    shapes = {"x": (batch, channels[0], size, size), "y": out, "b": (channels[1],), "other": out, "row": (1, 3, 1, 1)}
    shapes["w"] = (channels[1], channels[0] // groups, kernel, kernel)
    return step, shapes, {**dict.fromkeys(shapes, BLOCKED), "x": layout}


def _fc(rows: int, inner: int, columns: int) -> tuple[Step, Mapping[str, Shape], Mapping[str, str]]:
    settings: Mapping[str, Setting] = MappingProxyType({"transposed": 0, "alpha": 1.0, "beta": 1.0})
    step = Step("s", "fc", ("s",), ("x",), ("y",), MappingProxyType({"weight": "w", "bias": "b"}), settings)
    shapes = {"x": (rows, inner), "y": (rows, columns), "w": (inner, columns), "b": (columns,)}
    return step, shapes, dict.fromkeys(shapes, NCHW)


def _all(numbers: DeviceNumbers) -> Iterator[Dispatch]:
    for channels, size, kernel, stride in itertools.product((8, 16, 24, 40, 64, 512), (7, 14, 57), (1, 3, 5), (1, 2)):
        yield dispatch(*_conv((channels, channels + 8), size, kernel, stride), numbers)
        yield dispatch(*_conv((channels, channels), size, kernel, stride, channels), numbers)
        yield dispatch(*_conv((3, channels), size, kernel, stride, layout=NCHW), numbers)
        yield dispatch(*_fc(size - 6, channels, channels), numbers)


@pytest.mark.parametrize(
    ("case", "implementation"),
    [
        (_conv((64, 64), 56, 3), "conv.winograd"),
        (_conv((64, 64), 56, 3, stride=2), "conv.direct"),
        (_conv((64, 64), 5, 3), "conv.direct"),  # of 4 x 4 tiles, 9 of each 16 pixels would be thrown away
        (_conv((8, 64), 56, 3), "conv.direct"),
        (_conv((64, 64), 56, 1), "conv.pointwise"),
        (_conv((64, 64), 56, 1, stride=2), "conv.direct"),
        (_conv((64, 64), 2, 1), "conv.direct"),  # less than a tile
        (_conv((64, 64), 56, 3, groups=64), "conv.depthwise"),
        (_conv((64, 64), 56, 3, groups=2), "conv.direct"),
        (_conv((3, 64), 56, 3, layout=NCHW), "conv.first"),
        (_fc(1, 64, 10), "linear"),
        (_fc(50, 64, 10), "linear"),
    ],
)
def test_choice(case: tuple[Step, Mapping[str, Shape], Mapping[str, str]], implementation: str) -> None:
    assert dispatch(*case, _NUMBERS[0]).implementation == implementation


@pytest.mark.parametrize("numbers", _NUMBERS, ids=str)
def test_launches_are_ones_that_a_device_takes_and_features_are_numbers(numbers: DeviceNumbers) -> None:
    variants, names = set(), set()
    for found in _all(numbers):
        for launch in found.launches:
            variants.add((launch.source, launch.defines))
            assert all(whole % part == 0 for whole, part in zip(launch.global_size, launch.local_size, strict=True))
            assert math.prod(launch.local_size) <= numbers.work_group
            assert launch.arguments.count(Memory.weights) <= 1
        assert found.work.padded_pixels >= found.work.pixels
        unit = 1 if found.implementation == "linear" else numbers.block
        whole = -(-found.work.channels // unit) * unit
        assert found.work.padded_channels >= whole  # what fills a block is written, too: as zeros
        one = found.features()
        names.add(tuple(one))
        assert all(type(value) is float and math.isfinite(value) and value >= 0 for value in one.values())
        assert 0 < one["useful"] <= 1
        assert 0 < one["last_wave"] <= 1
    assert len(names) == 1
    assert len(variants) <= 8  # each is seconds of building


def test_features_of_one_layer() -> None:
    found = dispatch(*_conv((64, 24), 8, 1), DeviceNumbers(units=4, vector=8, block=8, work_group=64)).features()
    # 24 channels are three vectors: tiles of 4 pixels x 24 channels, all 16 of them in one work item
    assert found == dict(zip(FEATURES, (1, 1, 1, 1, 0.25, 4, 24, 64, 24, 1, 64 * 24 * 64, 8 + 24 + 24 * 64, 0), strict=True))


def test_a_range_of_columns_is_written_where_it_lies() -> None:
    for leading, wanted in ((64, 64), (0, 24)):
        (launch,) = dispatch(*_fc(5, 16, 24), _NUMBERS[0], leading).launches
        assert launch.arguments[3:8] == (ArenaOffset("output"), 5, 16, 24, wanted)


def test_images_of_a_batch_are_launched_one_by_one_also_by_alternatives() -> None:
    numbers = GpuNumbers(units=8, vector=4, block=16, work_group=256, local_bytes=1 << 15)
    one, two = (
        {"own": dispatch(*case, numbers), **alternative_dispatches(*case, numbers)}
        for case in (_conv((64, 64), 14, 3, batch=images) for images in (1, 2))
    )
    assert {"direct 4 x 2", "tiled 128 x 16"} < one.keys() == two.keys()
    for name, found in one.items():
        assert [launch.kernel for launch in two[name].launches] == 2 * [launch.kernel for launch in found.launches]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (_conv((12, 12), 9, 3, groups=3), "a convolution of 3 groups of 4 to 4 channels"),
        (_conv((8, 8), 9, 3, layout=NHWC), "an input in the layout nhwc with 1 groups"),
        (_conv((8, 8), 9, 3, groups=8, layout=NCHW), "an input in the layout nchw with 8 groups"),
        (_conv((8, 8), 9, 3, posts=(PostOp("eltwise", "relu"),) * 5), "5 post-operations, more than 4"),
        (_conv((8, 8), 9, 3, posts=(PostOp("eltwise", "sine"),)), "the post-operation sine"),
        (_conv((8, 8), 9, 3, posts=(PostOp("binary", "max", tensor="other"),)), "the post-operation max"),
        (
            _conv((8, 8), 9, 3, posts=(PostOp("binary", "add", tensor="row"),)),
            "a post-operation's operand (1, 3, 1, 1) of an output (1, 8, 9, 9)",
        ),
        ((Step("s", "gru", ("s",), ("x",), ("y",)), {"x": (1, 8), "y": (1, 8)}, {"x": NCHW, "y": NCHW}), "steps of kind gru"),
        (_fc(1, 1 << 15, 1 << 15), "a tensor of 1073741824 elements, more than 536870912"),
    ],
)
def test_refusals(case: tuple[Step, Mapping[str, Shape], Mapping[str, str]], why: str) -> None:
    assert refusal(*case, _NUMBERS[0]) == why
    with pytest.raises(DeviceError, match="leave this step to the other processor"):
        dispatch(*case, _NUMBERS[0])


@pytest.mark.parametrize(("vector", "block", "units"), [(2, 8, 1), (16, 8, 1), (8, 32, 1), (8, 8, 0)])
def test_numbers_that_no_kernel_is_for(vector: int, block: int, units: int) -> None:
    with pytest.raises(ValueError, match=r"units|vectors"):
        DeviceNumbers(units, vector, block, 64)
