"""Schedules of one program for other budgets, packed: what a change of the budget needs, without planning.

The file has a head, a row for each schedule by ascending budget, and then the schedules, each as 32-bit
integers: addresses of buffers and of weights, in units, and what each load waits for. One is read at a
time. Nothing heavy is imported: this runs within the budget.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from edgeplan.errors import FormatError
from edgeplan.runtime.streaming.program import AGAIN, PAGE_BYTES
from edgeplan.runtime.streaming.session import Schedule

_MAGIC = b"schedul1"
_HEAD, _ROW = struct.Struct("<8sIII"), struct.Struct("<qqdd")
_UNIT = 64  # all addresses are multiples of it
_MOST = 1 << 16  # schedules: more is damage
_AS_FAST = 1.001  # of predicted times: no difference


class StoredSchedule(msgspec.Struct, frozen=True):
    """A schedule of the file, not read yet.

    Attributes:
        place: its number.
        budget_bytes: over idle, all pages counted.
        arena_bytes: of its arena.
        predicted_ms: of an inference.
        lower_bound_ms: proven for its budget.
    """

    place: int
    budget_bytes: int
    arena_bytes: int
    predicted_ms: float
    lower_bound_ms: float


class ScheduleFile:
    """The file of schedules of a program.

    Args:
        path: the file.
        steps: of the program.
        buffers: of the program.
        back_to_back: whether inferences follow each other.
    """

    def __init__(self, path: Path, steps: int, buffers: int, *, back_to_back: bool) -> None:
        self._path, self._steps, self._buffers, self._back_to_back = path, steps, buffers, back_to_back
        magic, found_steps, found_buffers, count = _HEAD.unpack(self._bytes(0, _HEAD.size))
        if magic != _MAGIC or (found_steps, found_buffers) != (steps, buffers) or count > _MOST:
            raise self._damaged("it is of another program")
        rows = _ROW.iter_unpack(self._bytes(_HEAD.size, _ROW.size * count))
        self.stored = tuple(StoredSchedule(place, *row) for place, row in enumerate(rows))
        self._begin = _HEAD.size + _ROW.size * count

    def fitting(self, budget: int, weight_bytes: Sequence[int]) -> tuple[StoredSchedule, Schedule] | None:
        """The fastest schedule that a budget is enough for; of those as fast the one that reads least once it is `filled`.

        Args:
            budget: bytes over idle.
            weight_bytes: of each step, as memory holds them.
        """
        fit = [stored for stored in self.stored if stored.budget_bytes <= budget]
        fastest = min((stored.predicted_ms for stored in fit), default=0.0)
        found = [(stored, self.schedule(stored)) for stored in fit if stored.predicted_ms <= fastest * _AS_FAST]
        if not found:
            return None
        stored, schedule = min(found, key=lambda pair: pair[1].read_bytes(weight_bytes) + pair[0].budget_bytes)
        return stored, filled(schedule, weight_bytes, budget - stored.budget_bytes)

    def schedule(self, stored: StoredSchedule) -> Schedule:
        """Read one schedule of the file, addresses in bytes."""
        length = self._buffers + 3 * self._steps
        values = array("i")
        values.frombytes(self._bytes(self._begin + stored.place * length * values.itemsize, length * values.itemsize))
        at, n = self._buffers, self._steps
        weights = [_UNIT * unit if unit >= 0 else -1 for unit in values[at : at + n]]
        return Schedule(
            self._back_to_back,
            stored.arena_bytes,
            [_UNIT * unit for unit in values[:at]],
            weights,
            values[at + n : at + 2 * n].tolist(),
            values[at + 2 * n :].tolist(),
        )

    def _bytes(self, at: int, size: int) -> bytes:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(descriptor, size, at)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._damaged(f"it cannot be read: {error.strerror}") from error
        if len(found) < size:
            raise self._damaged("it ends too early")
        return found

    def _damaged(self, why: str) -> FormatError:
        return FormatError(f"the schedules of the plan are damaged: {why}", where=str(self._path), next_step=AGAIN)


def filled(schedule: Schedule, weight_bytes: Sequence[int], room: int) -> Schedule:
    """Keep weights that are read in each inference in more memory, the largest first; they lie behind the arena.

    Args:
        schedule: that was made for less memory.
        weight_bytes: of each step, as memory holds them.
        room: bytes of more memory.
    """
    offsets, after, again = list(schedule.weight_offset), list(schedule.after), list(schedule.again)
    end = arena = schedule.arena_bytes
    for k in sorted(range(len(offsets)), key=lambda k: -weight_bytes[k]):
        at = -(-end // PAGE_BYTES) * PAGE_BYTES
        if offsets[k] >= 0 and again[k] != k and at + weight_bytes[k] <= arena + room:
            offsets[k], after[k], again[k] = at, -1, k
            end = at + weight_bytes[k]
    return Schedule(schedule.back_to_back, end, schedule.buffer_offset, offsets, after, again)


def packed(rows: Sequence[tuple[int, float, float, Schedule]], steps: int, buffers: int) -> bytes:
    """The content of the file.

    Args:
        rows: budget (bytes over idle), predicted time, bound (ms), and schedule, by ascending budget.
        steps: of the program.
        buffers: of the program.
    """
    head = _HEAD.pack(_MAGIC, steps, buffers, len(rows))
    table = b"".join(_ROW.pack(budget, schedule.arena_bytes, ms, bound) for budget, ms, bound, schedule in rows)
    bodies = []
    for _, _, _, schedule in rows:
        values = array("i", [_units(offset) for offset in schedule.buffer_offset])
        values.extend(_units(offset) if offset >= 0 else -1 for offset in schedule.weight_offset)
        values.extend(schedule.after)
        values.extend(schedule.again)
        bodies.append(values.tobytes())
    return head + table + b"".join(bodies)


def _units(offset: int) -> int:
    if offset % _UNIT:
        raise ValueError(f"address {offset} is no multiple of {_UNIT}")
    return offset // _UNIT
