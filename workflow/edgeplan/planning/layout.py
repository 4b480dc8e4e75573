"""Gives addresses to buffers whose lifetimes are known: one after the other, each at the first address where it fits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError

Ints = npt.NDArray[np.int64]
#: Offsets and ends of lifetimes stay below this, so that no sum of an offset and a size overflows 64 bits.
LARGEST = 2**61
#: Buffers that are placed by one search for the least layout: a second or two.
_WORK = 200_000
_MOST_TRIES = 1000  # of small problems
_NOISES, _UPPER = (0.0, 0.1, 0.3, 1.0), (0.0, 0.2, 0.5)


@dataclass(frozen=True)
class Buffers:
    """Buffers are alive in `[lower, upper)` each, in any unit; arrays have the same length, one entry a buffer.

    Sizes are bytes (or any unit), at least 0; offsets are multiples of the alignment, at least 1.
    """

    lower: Ints
    upper: Ints
    size: Ints
    alignment: Ints

    def __post_init__(self) -> None:
        if len({len(self.lower), len(self.upper), len(self.size), len(self.alignment)}) != 1:
            raise FormatError("lower, upper, size and alignment differ in length", next_step="give one entry a buffer")
        for what, wrong in (
            ("upper: not above lower", self.upper <= self.lower),
            ("size: negative", self.size < 0),
            ("alignment: below 1", self.alignment < 1),
            (f"lower, upper: not within +-{LARGEST}", (self.lower < -LARGEST) | (self.upper > LARGEST)),
            (f"alignment: above {LARGEST >> 20}", self.alignment > LARGEST >> 20),
        ):
            if wrong.any():
                raise FormatError(what, where=f"buffer {int(wrong.argmax())}", next_step="correct the buffer")
        if self.size.sum(dtype=np.float64) + self.alignment.sum(dtype=np.float64) >= LARGEST:
            raise FormatError(f"size: together above {LARGEST}", next_step="give the sizes in a larger unit")

    def __len__(self) -> int:
        return len(self.size)


@dataclass(frozen=True)
class BufferLayout:
    """Holds a layout: an offset of each buffer, the largest end of any, and what no layout is lower than, proven."""

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


class FirstFit:
    """Layouts of buffers, each by an order and an end of memory for each buffer."""

    def __init__(self, all_of: Buffers) -> None:
        self._of = all_of
        self._size, self._unit = all_of.size.tolist(), all_of.alignment.tolist()
        lower, upper = all_of.lower, all_of.upper
        self._beside = [np.flatnonzero((lower < b) & (a < upper)).tolist() for a, b in zip(lower, upper, strict=True)]
        length = (upper - lower).astype(np.float64)
        keys = (all_of.size, all_of.size * length, length, -lower)
        self._keys = [(key / max(1.0, float(np.abs(key).max(initial=0)))).tolist() for key in keys]

    def greedy(self) -> list[Ints]:
        """Greedy layouts (n,), from the lower end: buffers by size, area, lifetime, begin and end."""
        lower, upper, size = self._of.lower, self._of.upper, self._of.size
        length = upper - lower
        area = size.astype(float) * length.astype(float)
        keys = ((lower, -length, -size), (lower, -size, -area), (lower, -size, -length), (-size, lower), (-size, -upper))
        made = (self.laid_out(np.lexsort(key).tolist()) for key in keys)
        return [offsets for offsets in made if offsets is not None]

    def random_order(self, draw: random.Random) -> list[int]:
        """The buffers in a random order: one of the keys decides, with more or less noise."""
        key, noise = draw.choice(self._keys), draw.choice(_NOISES)
        ranks = [value + noise * draw.random() for value in key]
        return sorted(range(len(ranks)), key=lambda t: -ranks[t])

    def random_ends(self, draw: random.Random) -> list[bool]:
        """For each buffer, whether it goes to the upper end of memory."""
        share = draw.choice(_UPPER)
        return [draw.random() < share for _ in self._size]

    def laid_out(self, order: Sequence[int], upper: Sequence[bool] | None = None, room: int = LARGEST) -> Ints | None:
        """Addresses of the buffers, each as near to its end of memory as those before it leave; None if one does not fit.

        Those whose `upper` is true go to the upper end of `room` bytes; without it none does.
        """
        found = [-1] * len(order)
        for t in order:
            size, unit = self._size[t], self._unit[t]
            beside = [(found[j], found[j] + self._size[j]) for j in self._beside[t] if found[j] >= 0]
            if upper is not None and upper[t]:
                at = (room - size) // unit * unit
                for low, high in sorted(beside, key=itemgetter(1), reverse=True):
                    if high <= at:
                        break
                    if low < at + size:
                        at = (low - size) // unit * unit
                if at < 0:
                    return None
            else:
                at = 0
                for low, high in sorted(beside):
                    if at + size <= low:
                        break
                    at = max(at, -(-high // unit) * unit)
                if at + size > room:
                    return None
            found[t] = at
        return np.array(found, dtype=np.int64)


def lowest(all_of: Buffers) -> Ints:
    """Return offsets (n,) by placing in the order that gives the lowest layout."""
    return min(FirstFit(all_of).greedy(), key=lambda offsets: _height(all_of, offsets))


def least(all_of: Buffers, work: int = _WORK) -> BufferLayout:
    """Return the lowest layout found: the best of the greedy orders, then random orders until one is at the bound.

    At most `work` buffers are placed in random orders.
    """
    offsets, bound = lowest(all_of), max_live(all_of)
    made, draw = FirstFit(all_of), random.Random(0)  # noqa: S311  no secret
    tries = min(work // max(1, len(all_of)), _MOST_TRIES)
    while (height := _height(all_of, offsets)) > bound and tries > 0:
        tries -= 1
        lower = made.laid_out(made.random_order(draw), room=height - 1)
        offsets = offsets if lower is None else lower
    return BufferLayout(offsets, height, bound)


def _height(all_of: Buffers, offsets: Ints) -> int:
    return int((offsets + all_of.size).max(initial=0))
