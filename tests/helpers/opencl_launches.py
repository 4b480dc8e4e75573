"""Runs what is dispatched for one step on the first OpenCL device, in an arena where every write outside the output shows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl
import pytest

from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl.dispatch import dispatch
from edgeplan.opencl.launch import ArenaOffset, DeviceNumbers, Dispatch, Launch, Memory, packed
from edgeplan.opencl.platforms import OpenclOptions, find_device
from edgeplan.processors.opencl import device_numbers
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, size_bytes
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
        packed(found.packing, folded(step, {role: values.copy() for role, values in weights.items()})),
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
