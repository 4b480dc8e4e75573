"""`Resize` in TFLite: nearest neighbour and bilinear, where TFLite picks the pixels that ONNX picks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from edgeplan.engines.cold import UnsupportedError
from edgeplan.engines.litert.context import LoweringContext
from edgeplan.graph.ir import Operator

_Places = npt.NDArray[np.float64]


def _asymmetric(size: int, out: int) -> _Places:
    return np.arange(out, dtype=np.float64) * (size / out)


def _half_pixel(size: int, out: int) -> _Places:
    return (np.arange(out, dtype=np.float64) + 0.5) * (size / out) - 0.5


def _pytorch_half_pixel(size: int, out: int) -> _Places:
    return _half_pixel(size, out) if out > 1 else np.zeros(1)


def _align_corners(size: int, out: int) -> _Places:
    return np.arange(out, dtype=np.float64) * ((size - 1) / max(1, out - 1))


def _up(places: _Places) -> _Places:
    return np.floor(places + 0.5)


def _down(places: _Places) -> _Places:
    return np.ceil(places - 0.5)


#: ONNX's `coordinate_transformation_mode`: where in the input each output pixel lies, from their sizes along an axis.
_COORDINATES: Mapping[str, Callable[[int, int], _Places]] = MappingProxyType(
    {
        "asymmetric": _asymmetric,
        "half_pixel": _half_pixel,
        "pytorch_half_pixel": _pytorch_half_pixel,
        "align_corners": _align_corners,
    }
)
#: ONNX's `nearest_mode`.
_ROUNDINGS: Mapping[str, Callable[[_Places], _Places]] = MappingProxyType(
    {"floor": np.floor, "ceil": np.ceil, "round_prefer_floor": _down, "round_prefer_ceil": _up}
)
#: TFLite's flags (`alignCorners`, `halfPixelCenters`) and, as above, the place that each makes it start from.
_FLAGS: Mapping[tuple[bool, bool], str] = MappingProxyType(
    {(False, False): "asymmetric", (False, True): "half_pixel", (True, False): "align_corners"}
)


class Resizes(LoweringContext):
    """This class lowers `Resize` to operators of TFLite."""

    def resize(self, op: Operator) -> None:
        """An image to another height and width."""
        before, after = self._graph.shape(op.inputs[0]), self._graph.shape(op.outputs[0])
        mode = str(op.attributes.get("mode", "nearest"))
        coordinates = str(op.attributes.get("coordinate_transformation_mode", "half_pixel"))
        rounding = str(op.attributes.get("nearest_mode", "round_prefer_floor"))
        sizes = list(zip(before, after, strict=True))[2:]
        scales = op.attributes.get("scales")
        # a scale may differ from the ratio of the sizes, which is what TFLite goes by
        exact = not isinstance(scales, tuple) or all(
            size * s == out for size, out, s in zip(before, after, scales, strict=True)
        )
        policy = op.attributes.get("keep_aspect_ratio_policy", "stretch")
        plain = exact and policy == "stretch" and not op.integer("antialias", 0)
        flags = None
        known = coordinates in _COORDINATES and rounding in _ROUNDINGS
        if len(before) == 4 and before[:2] == after[:2] and plain and known:  # an image
            flags = _nearest(coordinates, rounding, sizes) if mode == "nearest" else _linear(coordinates, sizes, mode)
        if flags is None:
            raise UnsupportedError(f"no TFLite counterpart of a {mode} Resize with {coordinates} coordinates ({op.name})")
        code, options = (
            ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor") if mode == "nearest" else ("RESIZE_BILINEAR", "ResizeBilinear")
        )
        size = self._file.integers(f"{op.name}/size", after[2:])
        values = {"alignCorners": flags[0], "halfPixelCenters": flags[1]}
        self._file.operator(code, [self._index[op.inputs[0]], size], [self._out(op.outputs[0])], options, **values)


def _nearest(coordinates: str, rounding: str, sizes: list[tuple[int, int]]) -> tuple[bool, bool] | None:
    """Return the flags with which TFLite repeats the same pixels; conventions that differ in general agree at many sizes."""

    def onnx_pixels(size: int, out: int) -> _Places:
        return _ROUNDINGS[rounding](_COORDINATES[coordinates](size, out)).clip(0, size - 1)

    def tflite_pixels(size: int, out: int, flags: tuple[bool, bool]) -> _Places:
        # half-pixel centres are rounded down without taking the half off again, aligned corners to the nearest
        places = _COORDINATES[_FLAGS[flags]](size, out) + (0.5 if any(flags) else 0.0)
        return np.floor(places).clip(0, size - 1)

    for flags in _FLAGS:
        if all(np.array_equal(onnx_pixels(*axis), tflite_pixels(*axis, flags)) for axis in sizes):
            return flags
    return None


def _linear(coordinates: str, sizes: list[tuple[int, int]], mode: str) -> tuple[bool, bool] | None:
    """Return the flags with which TFLite interpolates at the same places, if there are any."""
    if mode != "linear":
        return None
    for flags, named in _FLAGS.items():
        if all(np.array_equal(_COORDINATES[coordinates](*axis), _COORDINATES[named](*axis)) for axis in sizes):
            return flags
    return None
