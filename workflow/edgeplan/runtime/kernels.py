"""Kernels of the native library: what oneDNN has no primitive for, as functions that are called from C.

A kernel has the arguments of `dnnl_primitive_execute`, and so is called where a primitive is: its block of numbers
(`graph.blocks`), a pointer that says nothing, the number of operands, their addresses. It allocates nothing, and returns 0 or
`BAD_INDEX`. Their sources are in `native/src/kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan import native
from edgeplan.errors import DeviceError

_FLOAT, _BYTES = ("float32",), ("int8", "uint8")
#: Truth values are bytes, and so is whatever is taken for one.
_TRUTH = ("uint8",)
_INTEGERS = ("int32", "int64")
_WHOLE = (*_INTEGERS, *_BYTES)
_NUMBERS = (*_FLOAT, *_INTEGERS)
_ALL = (*_NUMBERS, *_BYTES)
#: Whatever is moved is taken for integers of its size: a float might be changed on its way if it is no number.
_SIZES = ("int8", "int32", "int64")
#: How elements and slices are written to places; ONNX fixes the type of slices' indices.
_SCATTERED = ("elements{}_int32", "elements{}_int64", "slices{}_int64")

_LISTED: Mapping[tuple[str, ...], str] = {
    _SIZES: "where copied picked joined upper lower",
    _FLOAT: "mixed to_float16 to_bfloat16 of_float16_to of_bfloat16_to quantised_to_int8 quantised_to_uint8 "
    "float_modulo float_remainder float_power floor ceil rounded erf sin cos tan asin acos atan sinh cosh asinh acosh atanh "
    "is_nan is_infinity is_positive_infinity is_negative_infinity",
    _TRUTH: "both either one_alone invert bytes_table bytes_add bytes_mul bytes_concat bytes_mean",
    _INTEGERS: "total power power_by_float32 absolute negative",
    _WHOLE: "to_float32 add sub mul quotient modulo remainder minimum maximum most least "
    "bitwise_and bitwise_or bitwise_xor bitwise_not",
    _NUMBERS: "largest last_largest smallest last_smallest summed summed_before product highest lowest sign",
    _ALL: "equal greater less greater_or_equal less_or_equal to_bool to_uint8",
}

KERNELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **{family: elements for elements, families in _LISTED.items() for family in families.split()},
        **{f"gathered_by_{way}{index}": _SIZES for way in ("", "slices_", "elements_") for index in _INTEGERS},
        **{f"scattered_by_{what.format('')}": _SIZES for what in _SCATTERED},
        **{f"scattered_by_{what.format(to)}": _NUMBERS for what in _SCATTERED for to in ("_add", "_mul", "_max", "_min")},
        "to_int8": (*_NUMBERS, "uint8"),
        "to_int32": (*_FLOAT, "int64", *_BYTES),
        "to_int64": (*_FLOAT, "int32", *_BYTES),
        "dequantised": (*_BYTES, "int32"),
        "power_by_int32": (*_FLOAT, "int64"),
        "power_by_int64": (*_FLOAT, "int32"),
    }
)


def kernel_address(name: str) -> int:
    """Return the address of a kernel, by what it does and what its elements are of: `where_int32`.

    DeviceError where there is no such kernel, or no library.
    """
    family, _, element = name.rpartition("_")
    if element not in KERNELS.get(family, ()):
        raise DeviceError(
            f"there is no kernel {name!r}", where="the compiled steps of the program", next_step="plan the model again"
        )
    return native.address(f"kernel_{name}")
