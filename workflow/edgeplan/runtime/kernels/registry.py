"""This registry lists all kernels by name, and the types of elements that each is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from edgeplan.runtime.kernels import elements, halves, moving, quantising


class Kernel(NamedTuple):
    """A kernel, and what its elements may be of, as numba names them."""

    function: Callable[..., int]
    elements: tuple[str, ...]


_FLOAT, _BYTES = ("float32",), ("int8", "uint8")
#: Truth values are bytes.
_TRUTH = ("uint8",)
_INTEGERS = ("int32", "int64")
_WHOLE = (*_INTEGERS, *_BYTES)
_NUMBERS = (*_FLOAT, *_INTEGERS)
#: Whatever is moved is taken for integers of its size: a float might be changed on its way if it is no number.
_SIZES = ("int8", "int32", "int64")

KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "where": Kernel(moving.where, _SIZES),
        "copied": Kernel(moving.copied, _SIZES),
        "gathered_by_int32": Kernel(moving.gathered_by_int32, _SIZES),
        "gathered_by_int64": Kernel(moving.gathered_by_int64, _SIZES),
        "gathered_by_slices_int32": Kernel(moving.gathered_by_slices_int32, _SIZES),
        "gathered_by_slices_int64": Kernel(moving.gathered_by_slices_int64, _SIZES),
        "gathered_by_elements_int32": Kernel(moving.gathered_by_elements_int32, _SIZES),
        "gathered_by_elements_int64": Kernel(moving.gathered_by_elements_int64, _SIZES),
        "equal": Kernel(elements.equal, (*_NUMBERS, *_BYTES)),
        "greater": Kernel(elements.greater, (*_NUMBERS, *_BYTES)),
        "less": Kernel(elements.less, (*_NUMBERS, *_BYTES)),
        "greater_or_equal": Kernel(elements.greater_or_equal, (*_NUMBERS, *_BYTES)),
        "less_or_equal": Kernel(elements.less_or_equal, (*_NUMBERS, *_BYTES)),
        "both": Kernel(elements.both, _TRUTH),
        "either": Kernel(elements.either, _TRUTH),
        "one_alone": Kernel(elements.one_alone, _TRUTH),
        "invert": Kernel(elements.invert, _TRUTH),
        "to_float32": Kernel(elements.to_float32, (*_INTEGERS, *_BYTES)),
        "to_int32": Kernel(elements.to_int32, (*_FLOAT, "int64", *_BYTES)),
        "to_int64": Kernel(elements.to_int64, (*_FLOAT, "int32", *_BYTES)),
        "to_bool": Kernel(elements.to_bool, (*_NUMBERS, *_BYTES)),
        "to_int8": Kernel(elements.to_int8, (*_NUMBERS, "uint8")),
        "to_uint8": Kernel(elements.to_uint8, (*_NUMBERS, *_BYTES)),
        "to_float16": Kernel(halves.to_float16, _FLOAT),
        "to_bfloat16": Kernel(halves.to_bfloat16, _FLOAT),
        "of_float16_to": Kernel(halves.of_float16, _FLOAT),
        "of_bfloat16_to": Kernel(halves.of_bfloat16, _FLOAT),
        "quantised_to_int8": Kernel(quantising.quantised_to_int8, _FLOAT),
        "quantised_to_uint8": Kernel(quantising.quantised_to_uint8, _FLOAT),
        "dequantised": Kernel(quantising.dequantised, (*_BYTES, "int32")),
        "largest": Kernel(moving.largest, _NUMBERS),
        "last_largest": Kernel(moving.last_largest, _NUMBERS),
        "smallest": Kernel(moving.smallest, _NUMBERS),
        "last_smallest": Kernel(moving.last_smallest, _NUMBERS),
        "summed": Kernel(moving.summed, _NUMBERS),
        "summed_before": Kernel(moving.summed_before, _NUMBERS),
        "total": Kernel(moving.total, _INTEGERS),
        "product": Kernel(moving.product, _NUMBERS),
        "most": Kernel(moving.most, (*_INTEGERS, *_BYTES)),
        "least": Kernel(moving.least, (*_INTEGERS, *_BYTES)),
        "highest": Kernel(moving.highest, _NUMBERS),
        "lowest": Kernel(moving.lowest, _NUMBERS),
        "picked": Kernel(moving.picked, _SIZES),
        "mixed": Kernel(moving.mixed, _FLOAT),
        "joined": Kernel(moving.joined, _SIZES),
        "upper": Kernel(moving.upper, _SIZES),
        "lower": Kernel(moving.lower, _SIZES),
        "add": Kernel(elements.add, _WHOLE),
        "sub": Kernel(elements.sub, _WHOLE),
        "mul": Kernel(elements.mul, _WHOLE),
        "quotient": Kernel(elements.quotient, _WHOLE),
        "modulo": Kernel(elements.modulo, _WHOLE),
        "remainder": Kernel(elements.remainder, _WHOLE),
        "float_modulo": Kernel(elements.float_modulo, _FLOAT),
        "float_remainder": Kernel(elements.float_remainder, _FLOAT),
        "minimum": Kernel(elements.minimum, _WHOLE),
        "maximum": Kernel(elements.maximum, _WHOLE),
        "power": Kernel(elements.power, _INTEGERS),
        "power_by_float32": Kernel(elements.power_by_float32, _INTEGERS),
        "power_by_int32": Kernel(elements.power_by_int32, (*_FLOAT, "int64")),
        "power_by_int64": Kernel(elements.power_by_int64, (*_FLOAT, "int32")),
        "float_power": Kernel(elements.float_power, _FLOAT),
        "absolute": Kernel(elements.absolute, _INTEGERS),
        "negative": Kernel(elements.negative, _INTEGERS),
        "sign": Kernel(elements.sign, _NUMBERS),
        "floor": Kernel(elements.floor, _FLOAT),
        "ceil": Kernel(elements.ceil, _FLOAT),
        "rounded": Kernel(elements.rounded, _FLOAT),
        "erf": Kernel(elements.erf, _FLOAT),
        "is_nan": Kernel(elements.is_nan, _FLOAT),
        "is_infinity": Kernel(elements.is_infinity, _FLOAT),
        "is_positive_infinity": Kernel(elements.is_positive_infinity, _FLOAT),
        "is_negative_infinity": Kernel(elements.is_negative_infinity, _FLOAT),
    }
)
