"""These intrinsics give numba calls by address, and words that other threads see in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]  # it has no types
from numba import types
from numba.extending import intrinsic

from edgeplan.runtime.native.words import FLOATS, INTEGERS, WORD

_INT, _FLOAT = ir.IntType(64), ir.FloatType()


def _intrinsic(function: Callable[..., Any]) -> Callable[..., int]:
    """Numba's decorator, typed for those who call."""
    return intrinsic(function)


@_intrinsic
def invoke(typing: Any, function: Any, integers: Any, floats: Any) -> Any:  # noqa: ARG001  numba's protocol
    """Call by address with words from memory.

    In the C conventions of 64-bit Linux (System V on x86-64, AAPCS64) integers and floats are counted apart, each in order, and
    a function leaves alone what it does not take: one shape of call fits all functions of at most so many arguments.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        target, words, numbers = arguments
        kind = ir.FunctionType(_INT, [_INT] * INTEGERS + [_FLOAT] * FLOATS)
        word = builder.inttoptr(words, _INT.as_pointer())
        number = builder.inttoptr(numbers, _FLOAT.as_pointer())
        given = [builder.load(builder.gep(word, [_INT(i)])) for i in range(INTEGERS)]
        given += [builder.load(builder.gep(number, [_INT(i)])) for i in range(FLOATS)]
        return builder.call(builder.inttoptr(target, kind.as_pointer()), given)

    return types.int64(types.int64, types.int64, types.int64), generate


@_intrinsic
def invoke_with_four(typing: Any, function: Any, a: Any, b: Any, c: Any, d: Any) -> Any:  # noqa: ARG001
    """Call by address with at most four integers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        kind = ir.FunctionType(_INT, [_INT] * 4)
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


@_intrinsic
def load_word(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """The word at an address; what was written before it was put there is seen afterwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.load_atomic(builder.inttoptr(arguments[0], _INT.as_pointer()), "acquire", WORD)

    return types.int64(types.int64), generate


@_intrinsic
def store_word(typing: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Put a word at an address, for `load_word`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.store_atomic(arguments[1], builder.inttoptr(arguments[0], _INT.as_pointer()), "release", WORD)
        return arguments[1]

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def claim(typing: Any, address: Any, value: Any) -> Any:  # noqa: ARG001
    """Put a word where 0 stands, for one thread only; what stood there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _INT.as_pointer())
        found = builder.cmpxchg(pointer, _INT(0), arguments[1], "acq_rel", "acquire")
        return builder.extract_value(found, 0)

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def next_number(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """Add 1 to a word; what stood there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        pointer = builder.inttoptr(arguments[0], _INT.as_pointer())
        return builder.atomic_rmw("add", pointer, _INT(1), "acq_rel")

    return types.int64(types.int64), generate


@_intrinsic
def byte(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """The byte at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.zext(builder.load(builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())), _INT)

    return types.int64(types.int64), generate


def pointing(element: Any) -> Callable[..., Any]:
    """A function that takes an address for a pointer to elements."""

    @_intrinsic
    def at(typing: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate  # type: ignore[no-untyped-call]

    return at


words_at, unsigned_at, floats_at, bytes_at = map(pointing, (types.int64, types.uint64, types.float32, types.int8))
