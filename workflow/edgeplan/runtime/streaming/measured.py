"""Sessions of plans of memory for measuring: by any schedule, with what each of their parts takes.

See `native/include/measure.h`. Nothing heavy is imported: little is to stand beside what is measured.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from typing import Any

from edgeplan.runtime.native_session import NativeSession, checked

_POINTER, _INT, _WORD, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t


class _Options(ctypes.Structure):
    """Fields of `ep_stream_options`, in order."""

    _fields_ = (
        ("library", ctypes.c_char_p),
        ("readers", ctypes.POINTER(_INT)),
        ("reader_count", _SIZE),
        ("debug", _INT),
        ("gives_back", _INT),
        ("records", _INT),
        ("mapped", _INT),
    )


class _Schedule(ctypes.Structure):
    """Fields of `ep_schedule`, in order."""

    _fields_ = (
        ("arena_bytes", _WORD),
        ("back_to_back", _WORD),
        *((name, ctypes.POINTER(_WORD)) for name in ("buffers", "weights", "after", "again")),
    )

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> _Schedule:
        """The schedule of a plan document; see `planning.memory.document`."""
        columns = (plan[name] for name in ("tensor_offset", "weight_offset", "after", "again"))
        return cls(plan["arena_bytes"], plan["mode"] == "back-to-back", *((_WORD * len(c))(*c) for c in columns))


def ready(folder: str | os.PathLike[str], library: str, *, alone: bool) -> None:
    """Be what a process is before it opens a plan of memory: the library is loaded, and its threads have run.

    `alone`: pages of all files that were read and are not used are given up, too.
    """
    types = (ctypes.c_char_p, ctypes.c_char_p, _INT, _POINTER)
    checked("measure_ready", types, os.fsencode(folder), os.fsencode(library), alone, None)


class MeasuredStream(NativeSession):
    """A plan of memory that is open to be measured, by a plan document (None: the plan's own) or the stored one of a budget.

    Reading threads may use the processors named; none: any. `debug`: memory that becomes free is filled with NaN, so that using
    it shows. `gives_back`: it goes back to the system, as an allocator does with large blocks: what static memory saves.
    `records`: pages of the library that are needed are written down. `mapped`: weights are used where their file is mapped, and
    none is read. Errors are those of `edgeplan.open_plan`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        library: str,
        schedule: Mapping[str, Any] | None = None,
        *,
        budget: int = 0,
        readers: Sequence[int] = (),
        debug: bool = False,
        gives_back: bool = False,
        records: bool = False,
        mapped: bool = False,
    ) -> None:
        processors = (_INT * len(readers))(*readers)
        options = _Options(os.fsencode(library), processors, len(readers), debug, gives_back, records, mapped)
        given = None if schedule is None else ctypes.byref(_Schedule.of(schedule))
        handle, types = _POINTER(), (ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, _POINTER)
        checked("measure_stream", types, os.fsencode(folder), ctypes.byref(options), given, budget, ctypes.byref(handle))
        super().__init__(handle.value or 0, os.fspath(folder))

    def _measure(self, name: str, *arguments: Any, types: tuple[Any, ...] = ()) -> None:
        self._ask(lambda: self._call(f"measure_{name}", *arguments, types=types))

    def apply(self, schedule: Mapping[str, Any]) -> None:
        """Run by another schedule, a plan document, from now on."""
        self._measure("apply", ctypes.byref(_Schedule.of(schedule)), types=(_POINTER,))

    def fill(self) -> None:
        """Load what memory has room for."""
        self._measure("fill")

    def wait_touched(self) -> None:
        """Wait until the whole arena is in memory."""
        self._measure("touched")

    def settle(self) -> None:
        """Give up what was read around code that ran in the first inference alone."""
        self._measure("settle")

    def slow(self, nanoseconds: Sequence[int]) -> None:
        """Prolong each step from now on, awake, as a slower processor does; empty: no longer."""
        self._measure("slow", (_WORD * len(nanoseconds))(*nanoseconds), len(nanoseconds), types=(_POINTER, _SIZE))

    def stream_ms(self) -> float:
        """Milliseconds to read all weights while nothing else runs, each to its place; the next run begins anew."""
        return self._milliseconds("stream_ms")

    def read_ms(self) -> float:
        """Milliseconds of a page that is read alone; the next run begins anew."""
        return self._milliseconds("read_ms")

    def _milliseconds(self, name: str) -> float:
        found = ctypes.c_double()
        self._measure(name, ctypes.byref(found), types=(_POINTER,))
        return found.value

    def ran_ns(self) -> list[tuple[int, int]]:
        """When each step of the last inference began and ended (`time.perf_counter_ns`)."""
        return [(begin, end) for _, _, stage, begin, end in self.trace() if stage == "execute"]

    def pages(self, *, running: bool) -> list[int]:
        """Return the library's pages that making kernels needed, or executing them: the first of each run, and how many."""
        count, types = _SIZE(), (_INT, _POINTER, _POINTER)
        self._measure("pages", running, None, ctypes.byref(count), types=types)
        found = (_WORD * count.value)()
        self._measure("pages", running, found, ctypes.byref(count), types=types)
        return list(found)
