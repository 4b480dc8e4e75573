"""Kernels of the native library: all that are listed are there, and each way through a row computes what numpy does."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from depth import MANY
from edgeplan import native
from edgeplan.errors import DeviceError
from edgeplan.graph import blocks
from edgeplan.graph.blocks import Walked, span_bytes
from edgeplan.runtime import constants
from edgeplan.runtime.kernels import KERNELS, kernel_address

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
            kernel_address(name)


def test_the_library_knows_blocks_and_lists_of_numbers_as_planning_does() -> None:
    header = (_SOURCES / "kernels.h").read_text()
    enumerations = [names.split(", ") for names in re.findall(r"enum \{ (.*) \};", header)]
    assert [len(names) for names in enumerations] == [4, 5]
    assert all(getattr(blocks, name) == place for names in enumerations for place, name in enumerate(names))
    assert f"BAD_INDEX = {constants.BAD_INDEX};" in header
    (fields,) = re.findall(r"struct Numbers \{\s+((?:float [^;]*;\s+)+)", (_SOURCES / "byte_lines.cpp").read_text())
    names = re.findall(r"\w+", fields.replace("float", ""))
    order = "first_factor second_factor third_factor shift lowest highest flip_read flip_second flip_written"
    assert names == order.split()  # that of `transform.line_constants`
    assert len(names) == constants.NUMBERS


def _called(kernel: str, block: int, count: int, operands: int) -> int:
    """Call a kernel as primitives are: its block and addresses of its operands lie there; its status."""
    types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    return int(native.function(f"kernel_{kernel}", *types)(block, None, count, operands))


def _computed(kernel: str, written: str, *operands: _Array) -> _Array:
    """What a kernel makes of operands, which are broadcast, in the memory where they lie."""
    shape = np.broadcast_shapes(*(one.shape for one in operands))
    y = np.zeros(shape, written)
    places = [*(np.broadcast_to(one, shape) for one in operands), y]
    strides = [tuple(step // one.itemsize for step in one.strides) for one in places]
    block = np.array(blocks.strided(shape, strides, [one.dtype.name for one in places]), np.int64)
    at = np.array([one.ctypes.data for one in places], np.int64)
    assert _called(kernel, block.ctypes.data, len(places), at.ctypes.data) == 0
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


_OF_TWO: dict[str, _Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "minimum": np.minimum, "maximum": np.maximum,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "quotient": _quotient, "modulo": np.mod, "remainder": np.fmod, "float_remainder": np.fmod, "float_modulo": np.mod,
}  # fmt: skip
_TESTS: dict[str, _Function] = {
    "equal": np.equal, "greater": np.greater, "less": np.less, "greater_or_equal": np.greater_equal,
    "less_or_equal": np.less_equal, "both": np.logical_and, "either": np.logical_or, "one_alone": np.not_equal,
}  # fmt: skip
_OF_ONE: dict[str, _Function] = {
    "absolute": np.abs, "negative": np.negative, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "rounded": np.rint,
    "bitwise_not": np.invert,
}  # fmt: skip
_PROPERTIES: dict[str, _Function] = {
    "is_nan": np.isnan, "is_infinity": np.isinf, "is_positive_infinity": np.isposinf, "is_negative_infinity": np.isneginf,
    "invert": np.logical_not, "to_bool": lambda x: x != 0,
}  # fmt: skip


@pytest.mark.parametrize("name", [*_OF_TWO, *_TESTS, *_OF_ONE, *_PROPERTIES])
def test_values_of_elements_are_numpys(name: str) -> None:
    for dtype in KERNELS[name]:
        for operands in _ways((dtype,) * (2 if name in _OF_TWO | _TESTS else 1)):
            with np.errstate(all="ignore"):
                wanted = (_OF_TWO | _TESTS | _OF_ONE | _PROPERTIES)[name](*operands)
            written = dtype if name in _OF_TWO | _OF_ONE else "bool"
            np.testing.assert_array_equal(_computed(f"{name}_{dtype}", written, *operands), wanted)


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


Block = tuple[int, ...]
_MUTATIONS = 400 if MANY else 25
_WORD = ctypes.c_int64
_SMALL = (3, 4, 5)


def _touched(kernel: str, block: Block, operand: int) -> int:
    """Bytes of an operand that a kernel touches; -1: the block is not for it."""
    found = native.function("touched", _WORD, ctypes.c_char_p, ctypes.c_void_p, _WORD, _WORD)
    return int(found(kernel.encode(), (_WORD * len(block))(*block), len(block), operand))


def _of(family: str, dtype: str) -> Block:
    """A block for a kernel, as planning makes it."""
    index = family.rpartition("_")[2]
    if family.startswith("gathered_by_slices"):
        return blocks.gathered_slices((3, 4, 5, 6), 1, (3, 2, 2), (dtype, index))
    if family.startswith("gathered_by_elements"):
        return blocks.gathered_elements((3, 4, 5), 1, (3, 2, 5), (dtype, index))
    if family.startswith("gathered"):
        return blocks.gathered((3, 7, 5), 1, 4, dtype, index)
    if family.startswith("scattered_by_slices"):
        return blocks.scattered_slices((6, 4, 5), (3, 2), (dtype, "int64"))
    if family.startswith("scattered"):
        return blocks.scattered_elements((3, 4, 5), 1, (3, 2, 5), (dtype, index))
    return _OTHERS[family](dtype) if family in _OTHERS else _element_wise(family, dtype)


_OTHERS = {
    "picked": lambda dtype: blocks.picked(3, 5, 7, dtype, 4),
    "mixed": lambda _: blocks.mixed(3, 5, 7, 4, 2),
    "joined": lambda dtype: blocks.runs(((2, 3, 5), (2, 4, 5), (2, 7, 5)), 1, dtype),
    **dict.fromkeys(("upper", "lower"), lambda dtype: blocks.triangle((2, 5, 6), dtype)),
    "bytes_table": lambda _: blocks.looked_up(50, "int8", "int8"),
    **dict.fromkeys(("bytes_add", "bytes_mul"), lambda _: blocks.paired((3, 4, 5), ((3, 4, 5), (4, 1)), constants.NUMBERS)),
    "bytes_concat": lambda _: blocks.byte_runs(((2, 3, 5), (2, 4, 5), (2, 7, 5)), 1, 2 * constants.NUMBERS),
    "bytes_mean": lambda _: blocks.averaged(3, 6, 5, constants.NUMBERS),
    "where": lambda dtype: blocks.element_wise((3, 4, 5), [((4, 1), "bool"), ((3, 4, 5), dtype), ((5,), dtype)], dtype),
    "dequantised": lambda dtype: _three(dtype, "float32", dtype, "float32"),
    "quantised_to_int8": lambda dtype: _three(dtype, "float32", "int8", "int8"),
    "quantised_to_uint8": lambda dtype: _three(dtype, "float32", "uint8", "uint8"),
    **dict.fromkeys(("highest", "lowest"), lambda dtype: blocks.selected((3, 7, 5), 1, 3, dtype)),
    **dict.fromkeys(
        ("largest", "last_largest", "smallest", "last_smallest"),
        lambda dtype: blocks.along((3, 7, 5), 1, (dtype, "int64"), kept=False),
    ),
    "summed": lambda dtype: blocks.along((3, 7, 5), 1, (dtype, dtype), kept=True, backwards=True),
    "summed_before": lambda dtype: blocks.along((3, 7, 5), 1, (dtype, dtype), kept=True),
    **dict.fromkeys(
        ("total", "product", "most", "least"), lambda dtype: blocks.along((3, 7, 5), 1, (dtype, dtype), kept=False)
    ),
    "of_float16_to": lambda dtype: blocks.element_wise(_SMALL, [(_SMALL, "float16")], dtype),
    "of_bfloat16_to": lambda dtype: blocks.element_wise(_SMALL, [(_SMALL, "bfloat16")], dtype),
    **{
        f"to_{one}": lambda dtype, one=one: blocks.element_wise(_SMALL, [((4, 5), dtype)], one)
        for one in ("float32", "int32", "int64", "int8", "uint8", "bool", "float16", "bfloat16")
    },
    **{
        f"power_by_{one}": lambda dtype, one=one: blocks.element_wise(_SMALL, [(_SMALL, dtype), ((5,), one)], dtype)
        for one in ("float32", "int32", "int64")
    },
}
_OF_C = ("erf", *(f"{arc}{name}{of}" for arc in ("", "a") for name in ("sin", "cos", "tan") for of in ("", "h")))
_ALONE = frozenset([*_OF_ONE, *_PROPERTIES, *_OF_C, "copied"])


def _three(a: str, b: str, c: str, written: str) -> Block:
    return blocks.element_wise(_SMALL, [(_SMALL, a), ((4, 1), b), ((4, 1), c)], written)


def _element_wise(family: str, dtype: str) -> Block:
    read = [(_SMALL, dtype)] if family in _ALONE else [(_SMALL, dtype), ((4, 1), dtype)]
    return blocks.element_wise(_SMALL, read, "bool" if family in _TESTS | _PROPERTIES else dtype)


def _all() -> Iterator[tuple[str, Block]]:
    for family, dtypes in KERNELS.items():
        for dtype in dtypes:
            yield f"{family}_{dtype}", _of(family, dtype)


@pytest.mark.parametrize("family", KERNELS)
def test_blocks_of_planning_are_taken_and_reach_as_planning_says(family: str) -> None:
    for dtype in KERNELS[family]:
        block = _of(family, dtype)
        for operand in range(block[blocks.AT_OPERANDS]):
            assert _touched(f"{family}_{dtype}", block, operand) == span_bytes(block, operand)


def test_blocks_that_are_not_for_a_kernel_are_refused() -> None:
    right = blocks.element_wise((3, 5), [((3, 5), "float32")], "float32")
    assert _touched("floor_float32", right, 0) == 60
    assert _touched("rows_by_int32", right, 0) == -1
    assert _touched("floor_int8", right, 0) == -1
    assert _touched("floor_float32", right[:-1], 0) == -1
    backwards = blocks.strided((5,), [(-1,), (1,)], ["float32"] * 2, starts=(3, 0))
    assert _touched("floor_float32", backwards, 0) == -1
    assert _touched("floor_float32", blocks.strided((5,), [(-1,), (1,)], ["float32"] * 2, starts=(4, 0)), 0) == 20
    endless = blocks.block((1 << 40, 1 << 40), 1, [Walked("float32", (0, 0), 0), Walked("float32", (0, 0), 0)])
    assert _touched("floor_float32", endless, 0) == -1


# In a process of its own: kernels on memory that ends where the checks say that they end


class _Guarded:
    """Bytes that end at a page that nobody may touch."""

    def __init__(self, size: int) -> None:
        pages = -(-size // mmap.PAGESIZE) + 1
        self._map = mmap.mmap(-1, pages * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + (pages - 1) * mmap.PAGESIZE), mmap.PAGESIZE, 0)
        self.address = start + (pages - 1) * mmap.PAGESIZE - size


def _run(kernel: str, block: Block, sizes: list[int], rng: np.random.Generator) -> None:
    operands = [_Guarded(size) for size in sizes]
    for size, one in zip(sizes, operands, strict=True):
        whole = np.resize(rng.integers(-3, 5, 64).astype((np.int8, np.int32, np.int64)[rng.integers(3)]), max(size, 1))
        ctypes.memmove(one.address, (rng.bytes(size) if rng.random() < 0.3 else whole.tobytes()[:size]), size)
    words = (_WORD * len(block))(*block)
    at = (_WORD * len(operands))(*(one.address for one in operands))
    _called(kernel, ctypes.addressof(words), len(operands), ctypes.addressof(at))


def _mutated(block: Block, rng: np.random.Generator) -> Block:
    found = list(block)
    for _ in range(int(rng.integers(1, 3))):
        place = int(rng.integers(len(found)))
        found[place] = int(
            rng.choice([0, 1, 2, -1, found[place] + 1, found[place] - 1, 2 * found[place], -found[place], 7, 64])
        )
    return tuple(found)


def main(first: str) -> None:
    """Run each kernel on blocks of which something was changed, as long as the checks take them."""
    for number, (kernel, block) in enumerate(_all()):
        if number % 8 != int(first):
            continue
        sys.stdout.write(f"{kernel}\n")
        sys.stdout.flush()
        rng = np.random.default_rng(number)
        for _ in range(_MUTATIONS):
            given = _mutated(block, rng)
            count = given[blocks.AT_OPERANDS]
            if 0 < count < 100 and _touched(kernel, given, 0) >= 0:
                sizes = [_touched(kernel, given, operand) for operand in range(count)]
                if min(sizes) > 0 and max(sizes) < 1 << 20:
                    _run(kernel, given, sizes, rng)


@pytest.mark.long
@pytest.mark.parametrize("first", range(8))
def test_no_kernel_goes_beyond_what_the_checks_say(first: int) -> None:
    here = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__, str(first)],
        capture_output=True, text=True, timeout=600, check=False, env={**os.environ, "PYTHONPATH": here},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]}: {done.stderr[-1000:]}"


if __name__ == "__main__":
    main(sys.argv[1])
