"""Kernels compute what the definition of their step says, on any shape, and leave everything but their output as it was."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import conv_output_size
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import PostOp, Setting, Step
from edgeplan.opencl import convolutions
from edgeplan.opencl.dispatch import dispatch
from edgeplan.opencl.launch import ArenaOffset, DeviceNumbers, Dispatch, Launch, Memory, packed_buffer
from edgeplan.opencl.platforms import OpenclOptions, find_device
from edgeplan.opencl.post_ops import ELTWISE
from edgeplan.processors.opencl import device_numbers
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, NCHW, size_bytes
from edgeplan.runtime.transform import folded

Array = npt.NDArray[np.float32]
_GAP = 64  # elements around each tensor
_CANARY = np.float32(12345.0)


@cache
def _queue() -> Any:
    try:
        device = find_device(OpenclOptions())
    except DeviceError as error:
        return error.what
    return cl.CommandQueue(cl.Context([device]))


@cache
def too_wide(vector: int) -> str:
    """Why vectors of so many floats are not tried: a driver that reports them but cannot compile them ends the process."""
    queue = _queue()
    if isinstance(queue, str):
        return queue
    if queue.device.native_vector_width_float < vector:
        return ""  # as several narrower ones
    works = device_numbers(queue.device, Dnnl().info.block, OpenclOptions()).vector
    return f"{queue.device.name} computes right with vectors of {works} floats" if works < vector else ""


@cache
def _program(source: str, defines: tuple[tuple[str, int], ...]) -> Any:
    folder = files("edgeplan.opencl") / "sources"
    text = (folder / "common.h").read_text() + (folder / f"{source}.cl").read_text()
    options = ["-cl-std=CL1.2", *(f"-D{key}={value}" for key, value in defines)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # of registers wider than this CPU's
        return cl.Program(_queue().context, text).build(options, cache_dir=False)


def to_blocked(values: Array, block: int) -> Array:
    """An image (1, C, H, W) as [blocks][H][W][block]."""
    _, channels, height, width = values.shape
    padded = np.zeros((-(-channels // block) * block, height, width), np.float32)
    padded[:channels] = values[0]
    return padded.reshape(-1, block, height, width).transpose(0, 2, 3, 1).ravel()


def from_blocked(values: Array, shape: Shape, block: int) -> Array:
    """The reverse, with the channels of padding."""
    _, _, height, width = shape
    return values.reshape(-1, height, width, block).transpose(0, 3, 1, 2).reshape(1, -1, height, width)


@dataclass(frozen=True)
class Ran:
    """What a step left.

    Attributes:
        output: as it lies, padding cut off.
        padding: the values of channels that are none.
        dispatch: what was launched.
    """

    output: Array
    padding: Array
    dispatch: Dispatch


def launched(
    step: Step,
    shapes: Mapping[str, Shape],
    layouts: Mapping[str, str],
    numbers: DeviceNumbers,
    tensors: Mapping[str, Array],
    weights: Mapping[str, Array],
    leading: tuple[int, int] = (0, 0),
) -> Ran:
    """Dispatch a step, run it, and check that nothing but its output was written.

    Args:
        step: the step.
        shapes, layouts: of its tensors.
        numbers: of the device.
        tensors: what it reads, row-major; the operand of a sum under the name of the output.
        weights: role -> values as in the file.
        leading: of a range of columns: its first column, and the columns of the whole.
    """
    queue = _queue()
    if isinstance(queue, str):
        pytest.skip(queue)
    start, whole = leading
    found = dispatch(step, shapes, layouts, numbers, whole)
    output = step.outputs[0]
    rows = math.prod(shapes[output][:-1])
    sizes = {t: size_bytes(shapes[t], layouts[t], numbers.block) // 4 for t in (*step.reads, output)}
    wide = {p.tensor for p in step.post_ops if p.tensor and shapes[p.tensor] == shapes[output]} | {output}
    sizes |= {t: rows * whole for t in wide if whole}
    offsets, at = {}, _GAP
    for tensor, size in sizes.items():
        offsets[tensor], at = at, at + size + _GAP
    arena = np.full(at, _CANARY)
    for tensor, values in tensors.items():
        flat = to_blocked(values, numbers.block) if values.ndim == 4 and layouts[tensor] == BLOCKED else values.ravel()
        arena[offsets[tensor] : offsets[tensor] + flat.size] = flat
    before = arena.copy()
    _run(
        queue,
        found,
        step,
        offsets | {tensor: offsets[tensor] + start for tensor in wide},
        arena,
        packed_buffer(found.packing, folded(step, {role: values.copy() for role, values in weights.items()})),
    )
    mine = np.zeros(at, bool)
    place = mine[offsets[output] : offsets[output] + sizes[output]]
    if whole:
        place.reshape(rows, whole)[:, start : start + shapes[output][-1]] = True
    else:
        place[:] = True
    assert np.array_equal(arena[~mine], before[~mine]), "written outside the output"
    if len(shapes[output]) == 4 and layouts[output] == BLOCKED:
        every = from_blocked(arena[mine], shapes[output], numbers.block)
        channels = shapes[output][1]
        return Ran(every[:, :channels], every[:, channels:], found)
    return Ran(arena[mine].reshape(shapes[output]), arena[:0], found)


def _run(queue: Any, found: Dispatch, step: Step, offsets: Mapping[str, int], arena: Array, weights: Array) -> None:
    flags = cl.mem_flags.READ_WRITE
    buffers = {
        Memory.arena: cl.Buffer(queue.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=arena),
        Memory.weights: cl.Buffer(queue.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=weights),
        Memory.workspace: cl.Buffer(queue.context, flags, 4 * max(1, found.workspace_elements)),
    }
    for launch in found.launches:
        kernel = cl.Kernel(_program(launch.source, launch.defines), launch.kernel)
        kernel.set_args(*_arguments(launch, step, offsets, buffers))
        cl.enqueue_nd_range_kernel(queue, kernel, launch.global_size, launch.local_size)
    cl.enqueue_copy(queue, arena, buffers[Memory.arena])


def _arguments(launch: Launch, step: Step, offsets: Mapping[str, int], buffers: Mapping[Memory, Any]) -> list[Any]:
    names = {"output": step.outputs[0], **{f"input:{i}": t for i, t in enumerate(step.inputs)}}
    names |= {f"operand:{i}": post.tensor for i, post in enumerate(step.post_ops)}
    given: list[Any] = []
    for argument in launch.arguments:
        if isinstance(argument, Memory):
            given.append(buffers[argument])
        elif isinstance(argument, ArenaOffset):
            given.append(np.int32(offsets[names[argument.role]] + argument.extra))
        else:
            given.append(np.int32(argument) if isinstance(argument, int) else np.float32(argument))
    return given


_SETTINGS = settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_CPU = DeviceNumbers(units=1, vector=8, block=8, work_group=4096)
_PHONE = DeviceNumbers(units=4, vector=4, block=8, work_group=256)  # its work items come in groups
_WIDE = DeviceNumbers(units=1, vector=16, block=16, work_group=4096)
_PARTS = DeviceNumbers(units=1, vector=4, block=16, work_group=16)  # a block is no whole number of tiles
_POSTS = (
    (),
    (PostOp("eltwise", "relu"),),
    (PostOp("eltwise", "clip", 0.25, 6.0),),  # zero is not left as it is
    (PostOp("sum", tensor="same"), PostOp("eltwise", "relu")),
    (PostOp("binary", "mul", tensor="each"), PostOp("eltwise", "logistic"), PostOp("binary", "add", tensor="same")),
    (PostOp("eltwise", "relu", 0.1), PostOp("binary", "add", tensor="each"), PostOp("binary", "mul", tensor="same")),
)

_THREE: Mapping[str, Setting] = {"groups": 1, "kernel": (3, 3), "strides": (1, 1), "dilations": (1, 1)}

Wide = npt.NDArray[np.float64]


def _softplus(x: Wide) -> Wide:
    return np.asarray(np.logaddexp(0, x))


_FORMULAS: Mapping[str, Callable[[Wide, float, float], Wide]] = {
    "relu": lambda x, a, _: np.where(x > 0, x, a * x),
    "clip": np.clip,
    "logistic": lambda x, _a, _b: 1 / (1 + np.exp(-x)),
    "hardswish": lambda x, a, b: x * np.clip(a * x + b, 0, 1),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "swish": lambda x, a, _: x / (1 + np.exp(-a * x)),
    "tanh": lambda x, _a, _b: np.tanh(x),
    "elu": lambda x, a, _: np.where(x > 0, x, a * np.expm1(x)),
    "linear": lambda x, a, b: a * x + b,
    "square": lambda x, _a, _b: x * x,
    "abs": lambda x, _a, _b: np.abs(x),
    "sqrt": lambda x, _a, _b: np.sqrt(x),
    "exp": lambda x, _a, _b: np.exp(x),
    "log": lambda x, _a, _b: np.log(x),
    "pow": lambda x, a, b: a * x**b,
    "gelu_tanh": lambda x, _a, _b: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x, _a, _b: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "soft_relu": lambda x, a, _: _softplus(a * x) / a,
    "mish": lambda x, _a, _b: x * np.tanh(_softplus(x)),
}


def _after(step: Step, x: Wide, tensors: Mapping[str, Array]) -> Wide:
    for post in step.post_ops:
        if post.kind == "eltwise":
            x = _FORMULAS[post.algorithm](x, post.alpha, post.beta)
        else:
            x = x * tensors[post.tensor] if post.algorithm == "mul" else x + tensors[post.tensor]
    return x


def _convolved(step: Step, x: Wide, weight: Wide, size: tuple[int, ...]) -> Wide:
    """The definition: for each place of the window, the pixels that it meets times its weights."""
    groups, (sy, sx), (dy, dx) = step.integer("groups"), step.sizes("strides"), step.sizes("dilations")
    pads = zip(step.sizes("pads_before"), step.sizes("pads_after"), strict=True)
    padded = np.pad(x[0], [(0, 0), *pads])
    out, inner, height, width = weight.shape
    found = np.zeros((out, *size))
    for group in range(groups):
        own, read = slice(group * out // groups, (group + 1) * out // groups), slice(group * inner, (group + 1) * inner)
        for ky in range(height):
            for kx in range(width):
                met = padded[read, ky * dy : ky * dy + size[0] * sy : sy, kx * dx : kx * dx + size[1] * sx : sx]
                found[own] += np.tensordot(weight[own, :, ky, kx], met[:, : size[0], : size[1]], 1)
    return found[None]


def _values(seed: int, shape: Shape) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def _step(kind: str, settings: Mapping[str, Setting], posts: tuple[PostOp, ...], roles: tuple[str, ...]) -> Step:
    weights = MappingProxyType({role: role for role in roles})
    return Step("s", kind, ("s",), ("x",), ("y",), weights, MappingProxyType(dict(settings)), posts)


def _check_convolution(
    settings: Mapping[str, Setting],
    x: Shape,
    weight: Shape,
    posts: tuple[PostOp, ...] = (),
    layout: str = BLOCKED,
    numbers: DeviceNumbers = _CPU,
) -> str:
    """Run a convolution and hold it against the definition; which implementation it was."""
    step = _step("conv", settings, posts, ("weight", "bias"))
    given = zip(("kernel", "strides", "dilations", "pads_before", "pads_after"), range(5), strict=True)
    kernel, strides, dilations, before, after = (step.sizes(key) for key, _ in given)
    size = tuple(
        conv_output_size(s, k, t, a + b, d)
        for s, k, t, a, b, d in zip(x[2:], kernel, strides, before, after, dilations, strict=True)
    )
    out = (1, weight[0], *size)
    shapes = {"x": x, "y": out, "weight": weight, "bias": (weight[0],), "same": out, "each": (1, weight[0], 1, 1)}
    operands = {post.tensor for post in posts if post.tensor}
    tensors = {name: _values(7 + place, shapes[name]) for place, name in enumerate(("x", *sorted(operands)))}
    weights = {"weight": _values(1, weight), "bias": _values(2, (weight[0],))}
    layouts = {**dict.fromkeys(shapes, BLOCKED), "x": layout}
    ran = launched(step, shapes, layouts, numbers, tensors, weights)
    sums = _convolved(step, tensors["x"].astype(float), weights["weight"].astype(float), size)
    expected = _after(step, sums + weights["bias"].reshape(1, -1, 1, 1), tensors)
    # F(4 x 4, 3 x 3) loses more of 24 bits than sums do: 3e-6 of what is added up
    slack = 2e-5 * math.sqrt(math.prod(weight[1:])) * (5 if ran.dispatch.implementation == "conv.winograd" else 1)
    np.testing.assert_allclose(ran.output, expected, rtol=1e-4, atol=slack)
    assert not ran.padding.any()
    return ran.dispatch.implementation


@st.composite
def _windows(draw: st.DrawFn) -> tuple[dict[str, Setting], tuple[int, int]]:
    """Settings of a convolution but its groups, and the size of an image that it fits on."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides, dilations = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    before, after = (tuple(draw(st.integers(0, k - 1)) for k in kernel) for _ in range(2))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    height, width = (draw(st.integers(span, span + 17)) for span in spans)
    found = {"kernel": kernel, "strides": strides, "dilations": dilations, "pads_before": before, "pads_after": after}
    return dict(found), (height, width)


@_SETTINGS
@given(_windows(), st.integers(1, 40), st.integers(1, 52), st.sampled_from(_POSTS), st.sampled_from([BLOCKED, NCHW]))
def test_any_window(
    window: tuple[dict[str, Setting], tuple[int, int]], inner: int, out: int, posts: tuple[PostOp, ...], layout: str
) -> None:
    settings, size = window
    kernel = settings["kernel"]
    assert isinstance(kernel, tuple)
    implementation = _check_convolution(
        {"groups": 1, **settings}, (1, inner, *size), (out, inner, kernel[0], kernel[1]), posts, layout
    )
    assert implementation in ({"conv.direct", "conv.pointwise", "conv.winograd"} if layout == BLOCKED else {"conv.first"})


@_SETTINGS
@given(_windows(), st.integers(2, 40), st.sampled_from(_POSTS))
def test_depthwise(window: tuple[dict[str, Setting], tuple[int, int]], channels: int, posts: tuple[PostOp, ...]) -> None:
    settings, size = window
    kernel = settings["kernel"]
    assert isinstance(kernel, tuple)
    weight = (channels, 1, kernel[0], kernel[1])
    implementation = _check_convolution({"groups": channels, **settings}, (1, channels, *size), weight, posts)
    assert implementation == "conv.depthwise"


@_SETTINGS
@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 40), st.integers(1, 52), st.sampled_from(_POSTS))
def test_pointwise(size: tuple[int, int], inner: int, out: int, posts: tuple[PostOp, ...]) -> None:
    settings = {**_THREE, "kernel": (1, 1), "pads_before": (0, 0), "pads_after": (0, 0)}
    implementation = _check_convolution(settings, (1, inner, *size), (out, inner, 1, 1), posts)
    assert implementation == ("conv.pointwise" if math.prod(size) >= 6 else "conv.direct")


@_SETTINGS
@given(
    st.tuples(st.integers(8, 25), st.integers(8, 25)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(convolutions.WINOGRAD_CHANNELS, 70),
    st.integers(1, 70),
    st.sampled_from(_POSTS),
)
def test_winograd(size: tuple[int, int], pads: tuple[int, int], inner: int, out: int, posts: tuple[PostOp, ...]) -> None:
    settings = {**_THREE, "pads_before": pads, "pads_after": pads[::-1]}
    implementation = _check_convolution(settings, (1, inner, *size), (out, inner, 3, 3), posts)
    pixels = [side - 2 + sum(pads) for side in size]
    blocks = math.prod(-(-side // convolutions.WINOGRAD_TILE) for side in pixels)
    useful = math.prod(pixels) / (-(-blocks // 4) * 4 * convolutions.WINOGRAD_TILE**2)
    assert implementation == ("conv.winograd" if useful >= convolutions.WINOGRAD_USEFUL else "conv.direct")


@pytest.mark.parametrize("numbers", [_PHONE, _WIDE, _PARTS], ids=lambda n: f"vector {n.vector} block {n.block}")
def test_other_vectors(numbers: DeviceNumbers) -> None:
    if why := too_wide(numbers.vector):
        pytest.skip(why)
    same = {**_THREE, "pads_before": (1, 1), "pads_after": (1, 1)}
    posts = _POSTS[4]
    wino = _check_convolution(same, (1, 37, 13, 11), (41, 37, 3, 3), posts, numbers=numbers)
    direct = _check_convolution({**same, "strides": (2, 1)}, (1, 37, 13, 11), (75, 37, 3, 3), posts, numbers=numbers)
    assert (wino, direct) == ("conv.winograd", "conv.direct")
    point = {**same, "kernel": (1, 1), "pads_before": (0, 0), "pads_after": (0, 0)}
    for out in (19, 48):
        implementation = _check_convolution(point, (1, 37, 5, 7), (out, 37, 1, 1), posts, numbers=numbers)
        assert implementation == "conv.pointwise"


def test_groups_of_work_items() -> None:
    same = {**_THREE, "pads_before": (1, 1), "pads_after": (1, 1)}
    first = _check_convolution(same, (1, 3, 13, 11), (41, 3, 3, 3), _POSTS[4], NCHW, _PHONE)
    each = _check_convolution({**same, "groups": 21}, (1, 21, 13, 11), (21, 1, 3, 3), _POSTS[4], numbers=_PHONE)
    assert (first, each) == ("conv.first", "conv.depthwise")
    for rows in (1, 5, 70):
        _check_linear(rows, 37, 53, (PostOp("eltwise", "relu"),), numbers=_PHONE)


@pytest.mark.parametrize("out", [96, 64])
def test_grouped_channels(out: int) -> None:
    settings = {**_THREE, "groups": 2, "pads_before": (1, 1), "pads_after": (1, 1)}
    assert _check_convolution(settings, (1, 64, 9, 9), (out, 32, 3, 3)) == "conv.direct"


def _check_linear(
    rows: int,
    inner: int,
    columns: int,
    posts: tuple[PostOp, ...] = (),
    transposed: int = 0,
    numbers: DeviceNumbers = _CPU,
    leading: tuple[int, int] = (0, 0),
) -> None:
    step = _step("fc", {"transposed": transposed, "alpha": 0.5, "beta": 2.0}, posts, ("weight", "bias"))
    weight = (columns, inner) if transposed else (inner, columns)
    shapes = {"x": (rows, inner), "y": (rows, columns), "weight": weight, "bias": (columns,), "same": (rows, columns)}
    start, whole = leading
    operand = _values(5, (rows, whole or columns))
    tensors = {"x": _values(3, (rows, inner)), **({"same": operand} if any(p.tensor for p in posts) else {})}
    weights = {"weight": _values(1, weight), "bias": _values(2, (columns,))}
    ran = launched(step, shapes, dict.fromkeys(shapes, NCHW), numbers, tensors, weights, leading)
    matrix = weights["weight"].astype(float)
    sums = tensors["x"] @ (matrix.T if transposed else matrix) * 0.5 + 2.0 * weights["bias"]
    expected = _after(step, sums, {"same": operand[:, start : start + columns]})
    np.testing.assert_allclose(ran.output, expected, rtol=1e-4, atol=2e-5 * math.sqrt(inner))


@_SETTINGS
@given(
    st.sampled_from([1, 1, 2, 6, 7, 25]),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from([(), _POSTS[1], _POSTS[3], (PostOp("eltwise", "gelu_erf"), PostOp("binary", "mul", tensor="same"))]),
    st.booleans(),
    st.none() | st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_linear(
    rows: int, inner: int, columns: int, posts: tuple[PostOp, ...], transposed: bool, around: tuple[int, int] | None
) -> None:
    leading = (around[0], sum(around) + columns) if around else (0, 0)
    _check_linear(rows, inner, columns, posts, int(transposed), leading=leading)


@pytest.mark.parametrize(("layout", "channels"), [(NCHW, 12), (BLOCKED, 12), (BLOCKED, 16)])
def test_linear_flattens_images(layout: str, channels: int) -> None:
    step = _step("fc", {"transposed": 1, "alpha": 1.0, "beta": 1.0}, (), ("weight",))
    image, weight = _values(1, (1, channels, 3, 5)), _values(2, (21, channels * 15))
    shapes = {"x": image.shape, "y": (1, 21), "weight": weight.shape}
    ran = launched(step, shapes, {"x": layout, "y": NCHW}, _CPU, {"x": image}, {"weight": weight})
    np.testing.assert_allclose(ran.output, image.reshape(1, -1) @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", ELTWISE)
def test_post_operations(algorithm: str) -> None:
    """Of the squares of sums, since some are of positive values only; and of some below zero."""
    alpha, beta = {"clip": (-0.5, 1.5), "pow": (2.0, 1.5)}.get(algorithm, (0.5, 0.25))
    around = PostOp("eltwise", "linear", 0.1, 0.5 if algorithm in ("sqrt", "log", "pow") else -0.5)
    posts = (PostOp("eltwise", "square"), around, PostOp("eltwise", algorithm, alpha, beta))
    settings = {**_THREE, "strides": (2, 2), "pads_before": (1, 1), "pads_after": (1, 1)}
    _check_convolution(settings, (1, 1, 9, 9), (13, 1, 3, 3), posts)


@pytest.mark.parametrize("out", [64, 24])
def test_a_range_of_channels_is_a_part_of_the_whole(out: int) -> None:
    """Weights of a range are packed from its own values, and give the same numbers to the bit."""
    settings = {**_THREE, "strides": (2, 2), "pads_before": (1, 1), "pads_after": (1, 1)}
    step = _step("conv", settings, (), ("weight", "bias"))
    image, weight, bias = _values(1, (1, 16, 9, 9)), _values(2, (out, 16, 3, 3)), _values(3, (out,))

    def of(start: int, stop: int) -> Array:
        shapes = {"x": image.shape, "y": (1, stop - start, 5, 5), "weight": (stop - start, 16, 3, 3), "bias": (stop - start,)}
        weights = {"weight": weight[start:stop], "bias": bias[start:stop]}
        return launched(step, shapes, {"x": BLOCKED, "y": BLOCKED}, _CPU, {"x": image}, weights).output

    assert np.array_equal(np.concatenate([of(0, 8), of(8, out)], axis=1), of(0, out))
