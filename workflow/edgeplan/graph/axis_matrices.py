"""Axis matrices replace steps that oneDNN has no primitive for: the places along one axis are mixed by fixed weights.

Interpolation, means, sums and average pooling mix a few places, by weights that follow from the operator alone. Along
short axes that is a product with a matrix; along long ones a compiled kernel is told the places and weights as tables. Both
are made where a step's weights are (`transform.folded`), lie in the weight cache as they do, and come from no file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.steps import Step

Array = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
#: Places, and what each counts.
_Taps = tuple[Integers, Array]


def axis_matrix(step: Step) -> Array:
    """Return the matrix of a step of kind `mix` by its `form`, `size`, `out` and more: (places written, places read)."""
    form, size = step.text("form"), step.integer("size")
    if form in ("mean", "sum"):
        return np.full((1, size), 1 / size if form == "mean" else 1, np.float32)
    at, weights = _taps(step)
    found = np.zeros((step.integer("out"), size), np.float32)
    np.add.at(found, (np.arange(len(found))[:, None], at), weights)
    return found


def tables(step: Step) -> tuple[npt.NDArray[Any], ...]:
    """Return the tables that a compiled step reads beside its operands.

    Args:
        step: its `form` is `pick` (the places, and what stands where there is none), `triangle` (how many places of each row
            lie below the diagonal), `axes` (how many axes are indexed, and the size and stride of each) or one of a matrix
            (places and weights, each (places written, taps)).
    """
    form = step.text("form")
    if form == "pick":
        return np.array(step.sizes("places")), np.array([step.settings["fill"]], step.text("dtype"))
    if form == "axes":
        return (np.array(step.sizes("axes")),)
    if form == "triangle":
        rows = np.arange(step.integer("rows")) + step.integer("diagonal")
        return (np.clip(rows, 0, step.integer("columns")),)
    return _taps(step)


def taps(settings: Mapping[str, Any]) -> int:
    """Count the pixels that each one written is mixed of, by settings as those of `axis_matrix`."""
    return 2 * _reach(settings["form"], _shrunk(settings))


def _taps(step: Step) -> _Taps:
    form = step.text("form")
    return _average(step) if form == "average" else _resized(step, form)


def _average(step: Step) -> _Taps:
    """Windows whose padding counts, but not what lies beyond it."""
    size, out = step.integer("size"), step.integer("out")
    kernel, stride, dilation, before = (step.integer(key) for key in ("window", "stride", "dilation", "before"))
    places = stride * np.arange(out)[:, None] + dilation * np.arange(kernel) - before
    counted = (places < size + step.integer("after")).sum(axis=1, keepdims=True, dtype=np.float32)
    inside = (places >= 0) & (places < size)
    return places.clip(0, size - 1), np.where(inside, np.float32(1) / counted.clip(1), np.float32(0))


def _shrunk(settings: Mapping[str, Any]) -> float:
    """Shrunk without aliases, filters reach over all pixels that one of the output covers."""
    return float(np.float32(settings["scale"] if "antialias" in settings else 1))


def _reach(mode: str, shrunk: float) -> int:
    return math.ceil((1 if mode == "linear" else 2) / shrunk)


def _resized(step: Step, mode: str) -> _Taps:
    size = step.integer("size")
    places, inside = _places_of(step.settings, size, step.integer("out"))
    shrunk = _shrunk(step.settings)
    if mode == "linear" and shrunk == 1:
        places = np.clip(places, np.float32(0), np.float32(size - 1))
    reach = _reach(mode, shrunk)
    at = np.floor(places).astype(np.int64)[:, None] + np.arange(1 - reach, reach + 1)
    distances = np.abs(at - places[:, None].astype(np.float64)) * shrunk
    weights = np.maximum(0, 1 - distances) if mode == "linear" else _cubic(distances, step.number("cubic"))
    if "exclude_outside" in step.settings:
        weights = np.where((at >= 0) & (at < size), weights, 0)
    weights *= inside[:, None] / weights.sum(axis=1, keepdims=True)
    return at.clip(0, size - 1), weights.astype(np.float32)


def _cubic(distances: npt.NDArray[np.float64], a: float) -> npt.NDArray[np.float64]:
    far = np.polynomial.Polynomial((-4 * a, 8 * a, -5 * a, a))(distances)
    near = np.polynomial.Polynomial((1, 0, -(a + 3), a + 2))(distances)
    return np.where(distances <= 1, near, np.where(distances < 2, far, 0))  # where the filter ends


def _places_of(settings: Mapping[str, Any], size: int, out: int) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Where in the input the pixels of a Resize's output lie, and which of these places are not beyond it (out,)."""
    if "start" not in settings:
        return _places(size, out, np.float32(settings["scale"]), settings["coordinates"]), np.ones(out, bool)
    start, end, last = np.float32(settings["start"]), np.float32(settings["end"]), np.float32(size - 1)
    pixels = np.arange(out, dtype=np.float32)
    found = start * last + pixels * (end - start) * last / (out - 1) if out > 1 else _HALF * (start + end) * last + pixels
    places = np.asarray(found, np.float32)
    return places, np.asarray((places >= 0) & (places <= last))


def nearest_pixels(size: int, out: int, settings: Mapping[str, Any]) -> Integers:
    """Return the pixel that each of `out` pixels takes of `size` ones, by ONNX's `nearest`; -1: none (out,)."""
    places, inside = _places_of(settings, size, out)
    return np.where(inside, _ROUNDINGS[settings["rounding"]](places).clip(0, size - 1), -1).astype(np.int64)


def picked_by_primitive(size: int, out: int) -> Integers:
    """The same by oneDNN's resampling, which goes by the sizes alone (out,)."""
    places = (np.arange(out, dtype=np.float32) + np.float32(0.5)) * np.float32(size) / np.float32(out) - np.float32(0.5)
    return np.asarray(np.floor(places + np.float32(0.5)).clip(0, size - 1), np.int64)


def _places(size: int, out: int, scale: np.float32, coordinates: str) -> Array:
    """Where in the input the output's pixels lie, in single precision as ONNX Runtime places them (out,)."""
    pixels = np.arange(out, dtype=np.float32)
    return pixels if scale == 1 else _COORDINATES[coordinates](pixels, scale, np.float32(size), np.float32(out))


_HALF = np.float32(0.5)


def _half_pixel(pixels: Array, scale: np.float32, _size: np.float32, _out: np.float32) -> Array:
    return (pixels + _HALF) / scale - _HALF


def _pytorch(pixels: Array, scale: np.float32, size: np.float32, out: np.float32) -> Array:
    return _half_pixel(pixels, scale, size, out) if out > 1 else np.zeros_like(pixels)


def _aligned(pixels: Array, _scale: np.float32, size: np.float32, out: np.float32) -> Array:
    return pixels * (size - 1) / (out - 1) if out > 1 else np.zeros_like(pixels)


def _symmetric(pixels: Array, scale: np.float32, size: np.float32, out: np.float32) -> Array:
    offset = size / 2 * (1 - out / (scale * size))
    return np.asarray(offset + (pixels + _HALF) / scale - _HALF, np.float32)


#: ONNX's `coordinate_transformation_mode`.
_COORDINATES: Mapping[str, Callable[[Array, np.float32, np.float32, np.float32], Array]] = MappingProxyType(
    {
        "half_pixel": _half_pixel,
        "pytorch_half_pixel": _pytorch,
        "half_pixel_symmetric": _symmetric,
        "align_corners": _aligned,
        "asymmetric": lambda pixels, scale, _size, _out: pixels / scale,
        "tf_half_pixel_for_nn": lambda pixels, scale, _size, _out: (pixels + _HALF) / scale,
    }
)
#: ONNX's `nearest_mode`.
_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {
        "floor": np.floor,
        "ceil": np.ceil,
        "round_prefer_floor": lambda places: np.ceil(places - _HALF),
        "round_prefer_ceil": lambda places: np.floor(places + _HALF),
    }
)
