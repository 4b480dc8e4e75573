"""Single steps of a cold start, prepared and executed stage by stage with the native code of a session (`measure.h`)."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan import native
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import STAGES, Span, checked
from edgeplan.runtime.plan_session import Closing

#: Weights go where the record says.
AS_LINKED = -1
_MOST_SPANS = 16  # of one preparation
_POINTER, _WORD, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


@dataclass(frozen=True, slots=True)
class Prepared:
    """A record that was prepared, by its number, and the nanoseconds of each stage: "read", "create", "transform"."""

    number: int
    spent: dict[str, int]


class Bench(Closing):
    """The records of a program. Used by one thread at a time; several benches side by side share nothing but the disk.

    Args:
        program: as `runtime.packed_programs` makes it.
        library, cache: files of oneDNN, and that cached weights come from.
        memory: another bench whose memory this one uses, as large at least; it is closed after this one.

    Raises:
        EdgeplanError: as those of `edgeplan.open_plan`; so do the methods.
    """

    def __init__(self, program: bytes, library: str, cache: Path | None = None, memory: Bench | None = None) -> None:
        self._bench, shared = ctypes.c_void_p(), None if memory is None else memory._bench  # noqa: SLF001  of its own kind
        path = None if cache is None else os.fsencode(cache)
        types = (ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p, _POINTER, _POINTER)
        checked("measure_open", types, program, len(program), os.fsencode(library), path, shared, ctypes.byref(self._bench))

    def close(self) -> None:
        """Free everything; nothing may be used afterwards, its memory neither."""
        native.function("measure_close", None, _POINTER)(self._bench)
        self._bench = ctypes.c_void_p()

    def _call(self, name: str, types: tuple[Any, ...] = (), *arguments: Any) -> None:
        checked(f"measure_{name}", (_POINTER, *types), self._bench, *arguments)

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The bytes of the activations, then of the weights, all of them touched before."""
        size = ctypes.c_size_t()
        address = native.function("measure_memory", _POINTER, _POINTER, _POINTER)(self._bench, ctypes.byref(size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size.value).from_address(address))

    def renew(self, *, kept: bool = False) -> None:
        """Make objects of the library, and map the cache, anew from here on; what was prepared is freed unless it is kept."""
        self._call("renew", (_INT,), kept)

    def prepare(self, record: int, place: int = AS_LINKED) -> Prepared:
        """Prepare a record for its execution, in the calling thread; its weights go to a place behind the activations."""
        number, spans, count = _WORD(), (Span * _MOST_SPANS)(), ctypes.c_size_t(_MOST_SPANS)
        types = (_WORD, _WORD, _POINTER, _POINTER, _POINTER)
        self._call("prepare", types, record, place, ctypes.byref(number), spans, ctypes.byref(count))
        spent: dict[str, int] = {}
        for span in spans[: count.value]:
            stage = STAGES[span.stage]
            spent[stage] = spent.get(stage, 0) + span.end_ns - span.begin_ns
        return Prepared(number.value, spent)

    def prepare_all(self) -> int:
        """Prepare the program's own steps in the calling thread, as a lane of a start does; nanoseconds of all stages."""
        spent = _WORD()
        self._call("prepare_all", (_POINTER,), ctypes.byref(spent))
        return spent.value

    def fetch(self, record: int, segment: int, *, mapped: bool) -> int:
        """Fetch the weights of a record from a segment of the cache, mapped or copied to their place; nanoseconds."""
        spent = _WORD()
        self._call("fetch", (_WORD, _INT, _WORD, _POINTER), record, mapped, segment, ctypes.byref(spent))
        return spent.value

    def execute(self, prepared: Sequence[Prepared], threads: int) -> None:
        """Execute records that are prepared, in order, on so many threads."""
        numbers = (_WORD * len(prepared))(*(one.number for one in prepared))
        self._call("execute", (_POINTER, ctypes.c_size_t, _INT), numbers, len(prepared), threads)


def first_execution_ms(program: Path, cache: Path | None, record: int) -> float:
    """Measure how much longer the first execution of a program's record takes than the second, in this process."""
    dnnl = Dnnl()
    dnnl.warm_up(1)
    with Bench(program.read_bytes(), dnnl.info.path, cache) as bench:
        prepared = (bench.prepare(record),)
        start = time.thread_time()
        bench.execute(prepared, 1)
        first = time.thread_time()
        bench.execute(prepared, 1)
        return 1e3 * ((first - start) - (time.thread_time() - first))
