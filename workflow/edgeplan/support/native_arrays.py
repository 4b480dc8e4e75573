"""Functions of the native library that take numpy's arrays by their addresses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from edgeplan.native import function


def array(element: Any) -> Any:
    """An argument that is an array of such elements without gaps; others are refused, as the library looks at neither."""
    return np.ctypeslib.ndpointer(element, flags=("C_CONTIGUOUS", "ALIGNED"))


def when_needed(name: str, result: Any, *arguments: Any) -> Callable[[], Any]:
    """`native.function`, called late: modules are imported where no library was built."""
    return partial(function, name, result, *arguments)
