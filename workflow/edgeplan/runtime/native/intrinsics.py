"""These intrinsics give numba pointers to what lies at an address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic


def pointing(element: Any) -> Callable[..., Any]:
    """A function that takes an address for a pointer to elements."""

    @intrinsic
    def at(typing: Any, address: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate  # type: ignore[no-untyped-call]

    return at
