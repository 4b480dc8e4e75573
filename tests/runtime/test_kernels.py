"""Kernels of the native library: all that are listed are there, and each way through a row computes what numpy does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgeplan import native
from edgeplan.errors import DeviceError
from edgeplan.graph import blocks
from edgeplan.runtime import constants, kernels
from edgeplan.runtime.kernels import KERNELS

LANE = "numerics"

_Array = npt.NDArray[Any]
_Function = Callable[..., Any]
_SOURCES = Path(__file__).parents[2] / "native" / "src" / "kernels"
_SHAPE = (3, 5, 77)  # longer than vectors, with a rest
_INTEGERS = ("int32", "int64", "int8", "uint8")


def test_the_library_has_the_kernels_that_are_listed() -> None:
    exported = re.findall(rb"\0ep_kernel_(\w+)(?=\0)", Path(native.library()._name).read_bytes())
    assert {name.decode() for name in exported} == {f"{family}_{one}" for family, own in KERNELS.items() for one in own}


def test_what_is_no_kernel_is_named() -> None:
    for name in ("nonsense", "erf_int8", "erf_", ""):
        with pytest.raises(DeviceError, match=f"no kernel '{name}'"):
            kernels.load([name])


def test_the_library_knows_blocks_and_lists_of_numbers_as_planning_does() -> None:
    header = (_SOURCES / "kernels.h").read_text()
    enumerations = [names.split(", ") for names in re.findall(r"enum \{ (.*) \};", header)]
    assert [len(names) for names in enumerations] == [4, 5]
    assert all(getattr(blocks, name) == place for names in enumerations for place, name in enumerate(names))
    assert f"BAD_INDEX = {constants.BAD_INDEX};" in header
    (fields,) = re.findall(r"struct Numbers \{\s+((?:float [^;]*;\s+)+)", (_SOURCES / "byte_lines.cpp").read_text())
    names = re.findall(r"\w+", fields.replace("float", "").upper())
    assert [getattr(constants, name) for name in names] == list(range(constants.NUMBERS))


def _computed(kernel: str, written: str, *operands: _Array) -> _Array:
    """What a kernel makes of operands, which are broadcast, in the memory where they lie."""
    shape = np.broadcast_shapes(*(one.shape for one in operands))
    y = np.zeros(shape, written)
    places = [*(np.broadcast_to(one, shape) for one in operands), y]
    strides = [tuple(step // one.itemsize for step in one.strides) for one in places]
    block = np.array(blocks.strided(shape, strides, [one.dtype.name for one in places]), np.int64)
    at = np.array([one.ctypes.data for one in places], np.int64)
    assert kernels.function(kernel)(block.ctypes.data, None, len(places), at.ctypes.data) == 0
    return y


def _drawn(dtype: str, shape: tuple[int, ...], seed: int) -> _Array:
    rng = np.random.default_rng(seed)
    if dtype == "float32":
        edges: list[Any] = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, 1.5, -2.5]
        found = rng.uniform(-9, 9, shape).astype(dtype)
    else:
        limits = np.iinfo(dtype)
        edges = [limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1]
        found = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    some = rng.random(shape) < 0.2
    found[some] = rng.choice(np.array(edges, dtype), int(some.sum()))
    return found


def _ways(dtypes: tuple[str, ...]) -> Iterator[tuple[_Array, ...]]:
    """Operands along whose rows kernels go by steps of 1, of 0 and of others."""
    whole = tuple(_drawn(dtype, _SHAPE, seed) for seed, dtype in enumerate(dtypes))
    yield whole
    yield tuple(one.transpose(0, 2, 1) for one in whole)
    yield tuple(one[:, ::-1, ::2] for one in whole)
    yield tuple(one[:1, :1, :1] for one in whole)
    if len(dtypes) > 1:
        for place in range(len(dtypes)):
            for part in (np.s_[:1, :1, :1], np.s_[:, :, :1], np.s_[:1, :1]):
                yield tuple(one[part] if k == place else one for k, one in enumerate(whole))
                yield tuple(one if k == place else one[part] for k, one in enumerate(whole))


def _quotient(a: _Array, b: _Array) -> _Array:
    """As in C; by 0 it is 0."""
    divisor = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, (a - np.fmod(a, divisor)) // divisor)


_OF_TWO: Mapping[str, _Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "quotient": _quotient, "modulo": np.mod, "remainder": np.fmod, "float_remainder": np.fmod, "float_modulo": np.mod,
}  # fmt: skip
_TESTS: Mapping[str, _Function] = {
    "equal": np.equal, "greater": np.greater, "less": np.less, "greater_or_equal": np.greater_equal,
    "less_or_equal": np.less_equal, "both": np.logical_and, "either": np.logical_or, "one_alone": np.not_equal,
}  # fmt: skip
_OF_ONE: Mapping[str, _Function] = {
    "absolute": np.abs, "negative": np.negative, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "rounded": np.rint,
    "bitwise_not": np.invert,
}  # fmt: skip
_PROPERTIES: Mapping[str, _Function] = {
    "is_nan": np.isnan, "is_infinity": np.isinf, "is_positive_infinity": np.isposinf, "is_negative_infinity": np.isneginf,
    "invert": np.logical_not, "to_bool": lambda x: x != 0,
}  # fmt: skip


@pytest.mark.parametrize("name", [*_OF_TWO, *_TESTS])
def test_values_of_two_elements_are_numpys(name: str) -> None:
    for dtype in KERNELS[name]:
        for a, b in _ways((dtype, dtype)):
            with np.errstate(all="ignore"):
                wanted = (_OF_TWO | _TESTS)[name](a, b)
            np.testing.assert_array_equal(_computed(f"{name}_{dtype}", dtype if name in _OF_TWO else "bool", a, b), wanted)


@pytest.mark.parametrize("name", [*_OF_ONE, *_PROPERTIES])
def test_values_of_one_element_are_numpys(name: str) -> None:
    for dtype in KERNELS[name]:
        for (x,) in _ways((dtype,)):
            with np.errstate(all="ignore"):
                wanted = (_OF_ONE | _PROPERTIES)[name](x)
            np.testing.assert_array_equal(_computed(f"{name}_{dtype}", dtype if name in _OF_ONE else "bool", x), wanted)


@pytest.mark.parametrize("dtype", ["float32", *_INTEGERS])
def test_casts_between_numbers_are_numpys(dtype: str) -> None:
    for (given,) in _ways((dtype,)):
        x = np.nan_to_num(given, posinf=3e9, neginf=-3e9)
        for to in ("float32", *_INTEGERS):
            if dtype in KERNELS[f"to_{to}"]:
                inside = x if to != "int32" or dtype != "float32" else x.clip(-(2**31), 2**31 - 128)
                wanted = inside.astype(np.int64 if dtype == "float32" and to != "float32" else dtype).astype(to)
                np.testing.assert_array_equal(_computed(f"to_{to}_{dtype}", to, inside), wanted, err_msg=to)


@pytest.mark.parametrize("dtype", KERNELS["where"])
def test_elements_are_moved_and_chosen(dtype: str) -> None:
    for (x,) in _ways((dtype,)):
        np.testing.assert_array_equal(_computed(f"copied_{dtype}", dtype, x), x)
    for which, a, b in _ways(("uint8", dtype, dtype)):
        np.testing.assert_array_equal(_computed(f"where_{dtype}", dtype, which % 3 > 0, a, b), np.where(which % 3 > 0, a, b))


@pytest.mark.parametrize("dtype", KERNELS["dequantised"])
def test_bytes_stand_for_numbers_by_any_scale(dtype: str) -> None:
    limits = np.iinfo(dtype)
    for given, scales, zero in _ways(("float32", "float32", dtype)):
        x, scale = given * 40, np.nan_to_num(np.abs(scales), nan=1.0, posinf=2.0) + np.float32(0.1)
        if dtype != "int32":
            with np.errstate(all="ignore"):
                apart = np.rint(x / scale) + zero.astype(np.float32)
            wanted = np.nan_to_num(apart, nan=limits.min).clip(limits.min, limits.max).astype(dtype)
            np.testing.assert_array_equal(_computed(f"quantised_to_{dtype}_float32", dtype, x, scale, zero), wanted)
        stored = np.flip(zero)
        numbers = (stored.astype(np.int64) - zero.astype(np.int64)).astype(np.float32) * scale
        np.testing.assert_array_equal(_computed(f"dequantised_{dtype}", "float32", stored, scale, zero), numbers)
