"""Numbers: rounded to digits that are the same everywhere, intervals of medians, arrays for native functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import comb
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.native import function


def nine_digits(value: float) -> float:
    """Return a number to nine significant digits; a whole number stays as it is.

    What is built from the same rows is to be the same on every machine, byte by byte. The last digits of a solver depend on
    where its arrays lie and on the kernels that its linear algebra chooses for the processor.
    """
    return value if isinstance(value, int) else float(f"{value:.9g}")


def nine_digits_each(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round each of some numbers to nine significant digits (n,)."""
    return np.array([nine_digits(float(value)) for value in values], dtype=np.float64)


def median_ends(count: int, chance: float) -> tuple[int, int] | None:
    """Return the places, in sorted values, of the ends of an interval of their median; None of too few values.

    `chance`: that the median lies beyond an end, for each of both at most.
    """
    beyond, low = 0.0, -1
    while (beyond := beyond + comb(count, low + 1) / 2**count) <= chance:
        low += 1
    return None if low < 0 else (low, count - 1 - low)


def around_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float, bool]:
    """Return the ends of an interval of the median that values are drawn around, and whether there are enough for the level.

    Where there are too few the ends are the least and the greatest. `level`: how often it holds the median, at least.
    """
    ordered, ends = sorted(values), median_ends(len(values), (1 - level) / 2)
    low, high = ends or (0, -1)
    return ordered[low], ordered[high], ends is not None


def array(element: Any) -> Any:
    """An argument that is an array of such elements without gaps; others are refused, as the library looks at neither."""
    return np.ctypeslib.ndpointer(element, flags=("C_CONTIGUOUS", "ALIGNED"))


def when_needed(name: str, result: Any, *arguments: Any) -> Callable[[], Any]:
    """`native.function`, called late: modules are imported where no library was built."""
    return partial(function, name, result, *arguments)
