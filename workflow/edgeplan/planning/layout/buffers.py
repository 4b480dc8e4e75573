"""Defines buffers with half-open lifetimes, and the layouts that are found for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError

Ints = npt.NDArray[np.int64]
#: Offsets and ends of lifetimes stay below this, so that no sum of an offset and a size overflows 64 bits.
LARGEST = 2**61


@dataclass(frozen=True)
class Buffers:
    """Buffers are alive in `[lower, upper)` each; arrays have the same length, one entry a buffer.

    Attributes:
        lower, upper: lifetime, any unit.
        size: bytes (or any unit), at least 0.
        alignment: offsets are multiples of it, at least 1.
    """

    lower: Ints
    upper: Ints
    size: Ints
    alignment: Ints

    def __post_init__(self) -> None:
        if len({len(self.lower), len(self.upper), len(self.size), len(self.alignment)}) != 1:
            raise FormatError("lower, upper, size and alignment differ in length", next_step="give one entry a buffer")
        checks = (
            ("upper: not above lower", self.upper <= self.lower),
            ("size: negative", self.size < 0),
            ("alignment: below 1", self.alignment < 1),
            (f"lower, upper: not within +-{LARGEST}", (self.lower < -LARGEST) | (self.upper > LARGEST)),
            (f"alignment: above {LARGEST >> 20}", self.alignment > LARGEST >> 20),
        )
        for what, wrong in checks:
            if wrong.any():
                raise FormatError(what, where=f"buffer {int(wrong.argmax())}", next_step="correct the buffer")
        if self.size.sum(dtype=np.float64) + self.alignment.sum(dtype=np.float64) >= LARGEST:
            raise FormatError(f"size: together above {LARGEST}", next_step="give the sizes in a larger unit")

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class BufferLayout:
    """Holds a layout with its proven bound.

    Attributes:
        offsets: one a buffer.
        height: largest end of a buffer.
        lower_bound: no layout is lower, proven.
    """

    offsets: Ints
    height: int
    lower_bound: int

    @property
    def proven(self) -> bool:
        """Tell whether no layout is lower."""
        return self.height <= self.lower_bound


def buffers(lower: object, upper: object, size: object, alignment: object = None) -> Buffers:
    """Return buffers from sequences of integers; alignment 1 without."""
    lows, highs, sizes = (np.asarray(values, dtype=np.int64) for values in (lower, upper, size))
    aligned = np.ones(len(sizes), dtype=np.int64) if alignment is None else np.asarray(alignment, dtype=np.int64)
    return Buffers(lows, highs, sizes, aligned)


def max_live(all_of: Buffers) -> int:
    """Return the largest sum of sizes that live at one time: no layout is lower."""
    times = np.concatenate([all_of.upper, all_of.lower])
    changes = np.concatenate([-all_of.size, all_of.size])
    order = np.argsort(times, kind="stable")  # what ends at a time ends before what begins then
    return int(np.cumsum(changes[order]).max(initial=0))
