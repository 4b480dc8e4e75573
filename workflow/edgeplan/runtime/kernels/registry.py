"""This registry lists all kernels by name, and the types of elements that each is compiled for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from edgeplan.runtime.kernels import byte_lines, elements, halves, moving, quantising
from edgeplan.runtime.kernels.walking import (
    bool_at,
    float32_at,
    int8_at,
    int32_at,
    int64_at,
    over,
    pair,
    probe,
    single,
    test,
    uint8_at,
)


class Kernel(NamedTuple):
    """A kernel, and what its elements may be of, as numba names them."""

    function: Callable[..., int]
    elements: tuple[str, ...]


_FLOAT, _BYTES = ("float32",), ("int8", "uint8")
#: Truth values are bytes, and so is whatever is taken for one.
_TRUTH = ("uint8",)
_INTEGERS = ("int32", "int64")
_WHOLE = (*_INTEGERS, *_BYTES)
_NUMBERS = (*_FLOAT, *_INTEGERS)
#: Whatever is moved is taken for integers of its size: a float might be changed on its way if it is no number.
_SIZES = ("int8", "int32", "int64")
#: What becomes of an element that several are written to, by the suffix of the kernel.
_REDUCED = {"": moving.replaced, "_add": elements.add, "_mul": elements.mul, "_max": moving.more, "_min": moving.less}
#: How elements and slices are written to places, by the type of the indices, which ONNX fixes for slices.
_SCATTERED = {
    "elements": (moving.scattered_elements, {"int32": int32_at, "int64": int64_at}),
    "slices": (moving.scattered_slices, {"int64": int64_at}),
}

KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {
        "where": Kernel(over(moving.where), _SIZES),
        "copied": Kernel(over(moving.copied), _SIZES),
        "gathered_by_int32": Kernel(over(moving.gathered, int32_at), _SIZES),
        "gathered_by_int64": Kernel(over(moving.gathered, int64_at), _SIZES),
        "gathered_by_slices_int32": Kernel(over(moving.gathered_slice, int32_at), _SIZES),
        "gathered_by_slices_int64": Kernel(over(moving.gathered_slice, int64_at), _SIZES),
        "gathered_by_elements_int32": Kernel(over(moving.gathered_element, int32_at), _SIZES),
        "gathered_by_elements_int64": Kernel(over(moving.gathered_element, int64_at), _SIZES),
        **{
            f"scattered_by_{what}{suffix}_{indices}": Kernel(made(at, function), _NUMBERS if suffix else _SIZES)
            for what, (made, types) in _SCATTERED.items()
            for suffix, function in _REDUCED.items()
            for indices, at in types.items()
        },
        "equal": Kernel(over(test, elements.equal), (*_NUMBERS, *_BYTES)),
        "greater": Kernel(over(test, elements.greater), (*_NUMBERS, *_BYTES)),
        "less": Kernel(over(test, elements.less), (*_NUMBERS, *_BYTES)),
        "greater_or_equal": Kernel(over(test, elements.greater_or_equal), (*_NUMBERS, *_BYTES)),
        "less_or_equal": Kernel(over(test, elements.less_or_equal), (*_NUMBERS, *_BYTES)),
        "both": Kernel(over(pair, elements.both), _TRUTH),
        "either": Kernel(over(pair, elements.either), _TRUTH),
        "one_alone": Kernel(over(pair, elements.one_alone), _TRUTH),
        "invert": Kernel(over(single, elements.invert), _TRUTH),
        "to_float32": Kernel(over(elements.cast, float32_at), (*_INTEGERS, *_BYTES)),
        "to_int32": Kernel(over(elements.cast, int32_at), (*_FLOAT, "int64", *_BYTES)),
        "to_int64": Kernel(over(elements.cast, int64_at), (*_FLOAT, "int32", *_BYTES)),
        "to_bool": Kernel(over(elements.cast_to_bool, bool_at), (*_NUMBERS, *_BYTES)),
        "to_int8": Kernel(over(elements.cast_to_byte, int8_at), (*_NUMBERS, "uint8")),
        "to_uint8": Kernel(over(elements.cast_to_byte, uint8_at), (*_NUMBERS, *_BYTES)),
        "to_float16": Kernel(over(halves.to_float16), _FLOAT),
        "to_bfloat16": Kernel(over(halves.to_bfloat16), _FLOAT),
        "of_float16_to": Kernel(over(halves.of_float16), _FLOAT),
        "of_bfloat16_to": Kernel(over(halves.of_bfloat16), _FLOAT),
        "quantised_to_int8": Kernel(over(quantising.quantised_signed, int8_at), _FLOAT),
        "quantised_to_uint8": Kernel(over(quantising.quantised_unsigned, uint8_at), _FLOAT),
        "dequantised": Kernel(over(quantising.dequantised), (*_BYTES, "int32")),
        "bytes_table": Kernel(byte_lines.looked_up, _TRUTH),
        "bytes_add": Kernel(byte_lines.paired(byte_lines.added), _TRUTH),
        "bytes_mul": Kernel(byte_lines.paired(byte_lines.multiplied), _TRUTH),
        "bytes_concat": Kernel(byte_lines.joined, _TRUTH),
        "bytes_mean": Kernel(byte_lines.averaged, _TRUTH),
        "largest": Kernel(over(moving.best, elements.greater), _NUMBERS),
        "last_largest": Kernel(over(moving.best, elements.greater_or_equal), _NUMBERS),
        "smallest": Kernel(over(moving.best, elements.less), _NUMBERS),
        "last_smallest": Kernel(over(moving.best, elements.less_or_equal), _NUMBERS),
        "summed": Kernel(over(moving.summed), _NUMBERS),
        "summed_before": Kernel(over(moving.summed_before), _NUMBERS),
        "total": Kernel(over(moving.reduced, elements.add), _INTEGERS),
        "product": Kernel(over(moving.reduced, elements.mul), _NUMBERS),
        "most": Kernel(over(moving.reduced, moving.more), (*_INTEGERS, *_BYTES)),
        "least": Kernel(over(moving.reduced, moving.less), (*_INTEGERS, *_BYTES)),
        "highest": Kernel(over(moving.chosen, elements.greater), _NUMBERS),
        "lowest": Kernel(over(moving.chosen, elements.less), _NUMBERS),
        "picked": Kernel(moving.picked, _SIZES),
        "mixed": Kernel(moving.mixed, _FLOAT),
        "joined": Kernel(moving.joined, _SIZES),
        "upper": Kernel(over(moving.upper), _SIZES),
        "lower": Kernel(over(moving.lower), _SIZES),
        "add": Kernel(over(pair, elements.add), _WHOLE),
        "sub": Kernel(over(pair, elements.sub), _WHOLE),
        "mul": Kernel(over(pair, elements.mul), _WHOLE),
        "quotient": Kernel(over(pair, elements.quotient), _WHOLE),
        "modulo": Kernel(over(pair, elements.modulo), _WHOLE),
        "remainder": Kernel(over(pair, elements.remainder), _WHOLE),
        "float_modulo": Kernel(over(pair, elements.float_modulo), _FLOAT),
        "float_remainder": Kernel(over(pair, elements.float_remainder), _FLOAT),
        "minimum": Kernel(over(pair, elements.minimum), _WHOLE),
        "maximum": Kernel(over(pair, elements.maximum), _WHOLE),
        "power": Kernel(over(pair, elements.power), _INTEGERS),
        "power_by_float32": Kernel(over(elements.raised, float32_at), _INTEGERS),
        "power_by_int32": Kernel(over(elements.raised, int32_at), (*_FLOAT, "int64")),
        "power_by_int64": Kernel(over(elements.raised, int64_at), (*_FLOAT, "int32")),
        "float_power": Kernel(over(pair, elements.float_power), _FLOAT),
        "absolute": Kernel(over(single, elements.absolute), _INTEGERS),
        "negative": Kernel(over(single, elements.negative), _INTEGERS),
        "sign": Kernel(over(single, elements.sign), _NUMBERS),
        "floor": Kernel(over(single, elements.floor), _FLOAT),
        "ceil": Kernel(over(single, elements.ceil), _FLOAT),
        "rounded": Kernel(over(single, elements.rounded), _FLOAT),
        "erf": Kernel(over(single, elements.erf), _FLOAT),
        **{name: Kernel(over(single, function), _FLOAT) for name, function in elements.FUNCTIONS.items()},
        "bitwise_and": Kernel(over(pair, elements.bitwise_and), _WHOLE),
        "bitwise_or": Kernel(over(pair, elements.bitwise_or), _WHOLE),
        "bitwise_xor": Kernel(over(pair, elements.bitwise_xor), _WHOLE),
        "bitwise_not": Kernel(over(single, elements.bitwise_not), _WHOLE),
        "is_nan": Kernel(over(probe, elements.is_nan), _FLOAT),
        "is_infinity": Kernel(over(probe, elements.is_infinity), _FLOAT),
        "is_positive_infinity": Kernel(over(probe, elements.is_positive_infinity), _FLOAT),
        "is_negative_infinity": Kernel(over(probe, elements.is_negative_infinity), _FLOAT),
    }
)
