"""Computes what kernels of the package's own are launched as: features that decide what a GPU takes (LiPG, section 3.2).

The dispatcher that chooses kernels at run time is asked about each configuration, in the layout that it reads. What it would
not launch as the row says (the host ran it, or nobody knows a step of its kind) has no launch: zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.kernels import CONTEXT, KernelConfig
from edgeplan.graph.steps import PostOp, Setting, Step
from edgeplan.opencl.launch import FEATURES, DeviceNumbers, Dispatch, GpuNumbers, device_numbers
from edgeplan.opencl.tiles import CPU_VECTOR
from edgeplan.predictors.configs import NUMBERS, ConfigTable, Integers
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.support.lazy import lazily

# devices whose kernels are not dispatched do without these
dispatcher, convolutions = lazily("edgeplan.opencl.dispatch"), lazily("edgeplan.opencl.convolutions")

Floats = npt.NDArray[np.float64]
#: Grows when the features below are computed otherwise: predictors learnt from those of one version.
LAUNCH_VERSION: Final = 1
_FURTHER = ("inner", "items", "groups_of_unit", "group_work", "unit_work", "wave_work", "group_reads")
#: Columns of a kernel that is launched, behind those of its configuration.
LAUNCH_FEATURES = tuple(f"launch.{name}" for name in (*FEATURES, *_FURTHER))
#: Columns that time grows with: terms of the linear work model.
LAUNCH_TERMS = tuple(
    f"launch.{name}" for name in ("launches", "waves", "inner", "padded_work", "unit_work", "wave_work", "group_reads")
)
_POOLS = ("maxpool", "avgpool", "gap", "gmp")
_NAMES = ("i", "o")
#: Numbers of a configuration that launches follow from.
_ASKED = tuple(n for n in NUMBERS if n not in {*CONTEXT, "bias", "residual", "other_elements", "pad_bottom", "pad_right"})


def checked_numbers(numbers: Mapping[str, int]) -> DeviceNumbers:
    """Return the numbers of a device that launches follow from."""
    try:
        found = device_numbers(numbers)
    except TypeError as error:
        raise ValueError(f"a device has {', '.join(f.name for f in fields(DeviceNumbers))}: {error}") from error
    rules = next(f.default for f in fields(GpuNumbers) if f.name == "tiled")
    if isinstance(found, GpuNumbers) and found.tiled != rules:
        raise ValueError(f"kernels in tiles are chosen by rules {rules} here, not {found.tiled}")
    return found


def launch_features(
    table: ConfigTable, layouts: Sequence[str], implementations: Sequence[str], numbers: Mapping[str, int]
) -> Floats:
    """Compute the features of the launches of kernels.

    Args:
        table: their configurations (n).
        layouts: layout that each reads; images of another than the dispatcher's two are taken to be in blocks (n).
        implementations: implementation that each has; "" where it is not known (n).
        numbers: numbers of the device (`Processor.numbers`).

    Returns:
        Shape (n, len(LAUNCH_FEATURES)), finite.
    """
    if not len(table):
        return np.zeros((0, len(LAUNCH_FEATURES)))
    device, names = checked_numbers(numbers), sorted({*layouts, *implementations})
    place = {name: code for code, name in enumerate(names)}
    told = [[place[name] for name in column] for column in (layouts, implementations)]
    kinds, activations = table.words["kind"], np.array([bool(word) for word in table.words["activation"]], dtype=np.int64)
    own = [table.codes["kind"], activations[table.codes["activation"]], *(table.numbers[name] for name in _ASKED)]
    # as one void of all columns: rows are sorted by their bytes, which is much faster than column by column
    keys = np.ascontiguousarray(np.column_stack([*own, *told]).astype(np.int64))
    _, first, back = np.unique(keys.view(f"V{keys.itemsize * keys.shape[1]}"), return_index=True, return_inverse=True)
    distinct = keys[first]
    found = np.zeros((len(distinct), len(LAUNCH_FEATURES)))
    apart = np.ones(len(distinct), dtype=bool)
    if isinstance(device, GpuNumbers) and device.vector < CPU_VECTOR:
        together = _many(distinct, kinds, names)
        apart[together] = False
        found[together] = _of_convolutions(distinct[together], names, device)
    for row in np.flatnonzero(apart):
        kind, activation, *sizes, layout, implementation = distinct[row].tolist()
        found[row] = _of_kernel((kinds[kind], bool(activation), *sizes), names[layout], names[implementation], device)
    return found[back.reshape(-1)]


def _many(keys: Integers, kinds: Sequence[str], names: Sequence[str]) -> Integers:
    """Return the rows that `convolutions.of_many` knows: convolutions of one image in blocks, without groups or depthwise."""
    convolves = np.array([name in ("conv", "dwconv") for name in kinds])[keys[:, 0]]
    in_blocks = np.array([name != NCHW for name in names])[keys[:, -2]]
    size = _sizes(keys)
    read, written, groups = size["in_channels"], size["out_channels"], size["groups"]
    alike = (groups == 1) | ((groups == read) & (groups == written))
    most = np.maximum(read * size["in_height"] * size["in_width"], written * size["out_height"] * size["out_width"])
    return np.flatnonzero(convolves & in_blocks & alike & (size["batch"] == 1) & (most <= dispatcher.MOST_ELEMENTS))


def _sizes(keys: Integers) -> dict[str, Integers]:
    """Return the columns of `_ASKED`, which stand behind those of kind and activation."""
    return {name: keys[:, 2 + place] for place, name in enumerate(_ASKED)}


def _of_convolutions(keys: Integers, names: Sequence[str], device: GpuNumbers) -> Floats:
    """Return the features of many convolutions at once; zeros for those that have another implementation."""
    found = np.zeros((len(keys), len(LAUNCH_FEATURES)))
    size = _sizes(keys)
    sides = [(size[f"{name}_height"], size[f"{name}_width"]) for name in ("in", "out")]
    windows = [(size[f"{name}_h"], size[f"{name}_w"]) for name in ("kernel", "stride", "dilation")]
    pads = size["pad_top"], size["pad_left"]
    channels: tuple[Any, ...] = size["in_channels"], size["out_channels"], size["groups"]  # arrays in the place of numbers
    asked = convolutions.Convolution(*channels, *sides, *windows, pads)
    for rows, made in convolutions.of_many(asked, device):
        known = np.isin(keys[rows, -1], [code for code, name in enumerate(names) if name in ("", made.implementation)])
        values = np.column_stack([np.broadcast_to(np.asarray(v, np.float64), len(rows)) for v in _launch_values(made)])
        found[rows] = np.where(known[:, None], values, 0.0)
    return found


@lru_cache(maxsize=1 << 16)
def _of_kernel(asked: tuple[str | int, ...], layout: str, implementation: str, device: DeviceNumbers) -> tuple[float, ...]:
    """Return the values of `LAUNCH_FEATURES` of a kernel: its kind, whether it has an activation, and the sizes of `_ASKED`."""
    kind, activation, *sizes = asked
    told: dict[str, Any] = dict(zip(_ASKED, sizes, strict=True))
    config = KernelConfig(str(kind), "", activation="relu" if activation else "", **told)
    found = launched(config, layout, device)
    if found is None or implementation not in ("", found.implementation):
        return (0.0,) * len(LAUNCH_FEATURES)
    return launch_values(found)


def launch_values(found: Dispatch) -> tuple[float, ...]:
    """Return the values of `LAUNCH_FEATURES` of a dispatch."""
    return tuple(map(float, _launch_values(found)))


def _launch_values(found: Dispatch) -> tuple[Any, ...]:
    """Return the same where sizes may be arrays, one element for each kernel."""
    values, inner = found.values(), found.work.multiplications
    groups = values["work_groups"]
    each = values["padded_work"] / groups
    further = (
        inner,
        sum(math.prod(launch.global_size) for launch in found.launches),
        groups / found.units,
        each,
        np.maximum(1.0, groups / found.units) * each,
        values["waves"] * each,
        groups * sum(found.tile) * inner,
    )
    return (*values.values(), *further)


def launched(config: KernelConfig, layout: str, device: DeviceNumbers) -> Dispatch | None:
    """Return the kernels that a configuration is launched as; None where the dispatcher has none, or its step is not known.

    Args:
        config: of one kernel.
        layout: layout that it reads.
        device: numbers of the device.
    """
    make = _STEPS.get(config.kind)
    if make is None:
        return None
    step, shapes = make(config)
    images = {name: layout if layout in (BLOCKED, NCHW) and name in step.inputs else BLOCKED for name in shapes}
    layouts = {name: images[name] if len(shape) == len(_image(config)) else NCHW for name, shape in shapes.items()}
    try:
        found: Dispatch = dispatcher.dispatch(step, shapes, layouts, device)
    except DeviceError:
        return None
    return found


Made = tuple[Step, dict[str, Shape]]


def _image(config: KernelConfig, side: str = "in") -> Shape:
    return (config.batch, *(int(getattr(config, f"{side}_{axis}")) for axis in ("channels", "height", "width")))


def _step(kind: str, config: KernelConfig, settings: Mapping[str, Setting], *sizes: Shape) -> Made:
    """Return a step of one input and one output; what is fused behind it takes one more operation an element."""
    posts = (PostOp("eltwise", "relu"),) if config.activation else ()
    (read, written), shapes = _NAMES, sizes or (_image(config), _image(config, "out"))
    return Step(kind, kind, (), (read,), (written,), settings=settings, post_ops=posts), {read: shapes[0], written: shapes[1]}


def _window(config: KernelConfig) -> dict[str, Setting]:
    both = ("h", "w")
    sizes = {name: tuple(getattr(config, f"{name}_{axis}") for axis in both) for name in ("kernel", "stride", "dilation")}
    kernel = (config.in_height, config.in_width) if config.kind in ("gap", "gmp") else sizes["kernel"]
    pads = (config.pad_top, config.pad_left)
    return {"kernel": kernel, "strides": sizes["stride"], "dilations": sizes["dilation"], "pads_before": pads}


def _convolution(config: KernelConfig) -> Made:
    return _step("conv", config, {**_window(config), "groups": config.groups})


def _pool(config: KernelConfig) -> Made:
    return _step("pool", config, {**_window(config), "algorithm": "max"})  # averages are launched alike


def _scale(config: KernelConfig) -> Made:
    return _step("scale", config, {})


def _connected(config: KernelConfig) -> Made:
    """Return the product of the last axis of any rank; see `features`."""
    (batch, *read), (_, *written) = _image(config), _image(config, "out")
    axis = max((axis for axis in range(3) if max(read[axis], written[axis]) > 1), default=0)
    inner, columns = read[axis], written[axis]
    rows = batch * math.prod(read) // inner
    return _step("fc", config, {"transposed": 0}, (rows, inner), (rows, columns))


def _moved(config: KernelConfig) -> Made:
    """Return what joins or cuts images along channels; parts between the smallest and the largest are taken to be alike."""
    joins = config.kind == "concat"
    whole, count = _image(config, "out" if joins else "in"), max(2, config.inputs)
    least, most = max(1, config.min_part), max(1, config.max_part)
    between = max(1, (whole[1] - least - most) // max(1, count - 2))
    channels = [most, *[between] * (count - 2), least]
    parts = {f"part:{index}": (whole[0], each, *whole[2:]) for index, each in enumerate(channels)}
    read, written = (tuple(parts), ("whole",)) if joins else (("whole",), tuple(parts))
    return Step(config.kind, config.kind, (), read, written, settings={"axis": 1}), {**parts, "whole": whole}


#: Kind of kernel -> the step that it is.
_STEPS: Mapping[str, Callable[[KernelConfig], Made]] = MappingProxyType(
    {
        **dict.fromkeys(("conv", "dwconv"), _convolution),
        **dict.fromkeys(_POOLS, _pool),
        **dict.fromkeys(("concat", "split"), _moved),
        "fc": _connected,
        "bn": _scale,
    }
)
