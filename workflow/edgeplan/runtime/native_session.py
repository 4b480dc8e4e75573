"""Plan folders that the native library runs (`native/include/edgeplan.h`): plans of cold starts and of memory.

Who opens a plan waits for this module: it imports next to nothing, and numpy where arrays are given.
"""

from __future__ import annotations

import ctypes
import os

from edgeplan import native
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, InfeasibleError, InputError, ModelError
from edgeplan.runtime.installed import installed_libraries
from edgeplan.runtime.plan_session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ClassVar, TypeVar

    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[np.generic]
    Taken = TypeVar("Taken")

#: Of spans, by their numbers.
STAGES = ("read", "create", "transform", "execute")
_MOST_DIMS = 12
_NS_PER_MS = 1e6
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_ERRORS = {kind.exit_code: kind for kind in (ModelError, DeviceError, FormatError, InputError, InfeasibleError)}


class _Options(ctypes.Structure):
    """Fields of `ep_options`, in order."""

    _fields_: ClassVar = [
        ("size", ctypes.c_size_t),
        ("library", ctypes.c_char_p),
        ("processors", ctypes.POINTER(_INT)),
        ("processor_count", ctypes.c_size_t),
        ("continuous", _INT),
        ("fixed", _INT),
        ("budget", ctypes.c_uint64),
    ]


class _TensorInfo(ctypes.Structure):
    """Fields of `ep_tensor_info`, in order."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("rank", _INT),
        ("dims", ctypes.c_int64 * _MOST_DIMS),
        ("bytes", ctypes.c_size_t),
        ("below", ctypes.c_int64),
    ]


class _Buffer(ctypes.Structure):
    """Fields of `ep_buffer`, in order."""

    _fields_: ClassVar = [("data", _POINTER), ("bytes", ctypes.c_size_t)]


class Span(ctypes.Structure):
    """Says what was done when; mirrors `ep_span`."""

    _fields_: ClassVar = [
        ("core", ctypes.c_int32),
        ("step", ctypes.c_int32),
        ("stage", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("begin_ns", ctypes.c_int64),
        ("end_ns", ctypes.c_int64),
    ]


class Tensor:
    """An input or output, row-major: `size` is in bytes, integers of an input stay below `below`."""

    __slots__ = ("below", "dtype", "name", "shape", "size")

    def __init__(self, told: _TensorInfo) -> None:
        self.name, self.dtype = os.fsdecode(told.name), os.fsdecode(told.dtype)
        self.shape, self.size, self.below = tuple(told.dims[: told.rank]), int(told.bytes), int(told.below)


class NativeSession(Session):
    """A plan of a cold start or of memory that is open.

    The handle is closed with the session. It is for entry points that measure (`native/include/measure.h`), 0 once it is
    closed; `outputs` are as `inputs`.
    """

    def __init__(self, handle: int, folder: str) -> None:
        self.handle = handle
        super().__init__(self._tensors("input"), folder)
        self.outputs = self._tensors("output")

    def _tensors(self, kind: str) -> tuple[Tensor, ...]:
        count = native.function(f"{kind}_count", _INT, _POINTER)(self.handle)
        found = tuple(_TensorInfo() for _ in range(count))
        for number, told in enumerate(found):
            self._call(kind, number, ctypes.byref(told), types=(_INT, _POINTER))
        return tuple(map(Tensor, found))

    def _call(self, name: str, *arguments: Any, types: tuple[Any, ...] = ()) -> None:
        """Call a function of the session that returns a status."""
        checked(name, (_POINTER, *types), self.handle, *arguments, handle=self.handle)

    # Inferences

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        import numpy as np  # noqa: PLC0415  who takes bytes needs none

        given = [np.ascontiguousarray(inputs[tensor.name]) for tensor in self.inputs]
        made = {tensor.name: np.empty(tensor.shape, tensor.dtype) for tensor in self.outputs}
        self._infer(*(_buffers([(v.ctypes.data, v.nbytes) for v in values]) for values in (given, made.values())))
        return made

    def run_taking(self, inputs: Mapping[str, Any], take: Callable[[str, memoryview], Taken]) -> dict[str, Taken]:
        """Run one inference, and take its outputs where they lie; no numpy is needed.

        Args:
            inputs: buffers of values of the model's types, row-major, by name; those that may not be written to are copied.
            take: called with the name of each output and its bytes, row-major, where they lie: memory is used again afterwards;
                it may ask nothing of the session. What it returns is returned by name.
        """

        def work() -> dict[str, Taken]:
            given = [_in_place(inputs[tensor.name]) for tensor in self.inputs]
            outputs = _buffers([(0, 0) for _ in self.outputs])
            self._infer(_buffers([(ctypes.addressof(value), ctypes.sizeof(value)) for value in given]), outputs)
            views = [memoryview((ctypes.c_char * made.bytes).from_address(made.data)).cast("B") for made in outputs]
            return {tensor.name: take(tensor.name, view) for tensor, view in zip(self.outputs, views, strict=True)}

        found: dict[str, Taken] = self._ask(work)
        return found

    def _infer(self, inputs: ctypes.Array[_Buffer], outputs: ctypes.Array[_Buffer]) -> None:
        self._call("run", inputs, len(inputs), outputs, len(outputs), types=(_POINTER, _INT, _POINTER, _INT))

    def set_budget(self, budget: int) -> float:
        """Run by the fastest stored schedule that a budget, bytes over idle, is enough for, from the next inference on.

        Returns the milliseconds predicted of an inference.

        Raises:
            InfeasibleError: it is too small.
            InputError: the plan is none of memory.
        """
        ms = ctypes.c_double()
        self._ask(lambda: self._call("set_budget", budget, ctypes.byref(ms), types=(ctypes.c_uint64, _POINTER)))
        return ms.value

    def prepare_later(self) -> None:
        """Prepare now what would else be a part of later runs: kernels of theirs, weights that memory has room for."""
        self._ask(lambda: self._call("prepare_later"))

    def expect(self, inferences: int) -> None:
        """So many inferences follow: for these alone weights are loaded ahead, while the one before runs."""
        self._ask(lambda: self._call("measure_expect", inferences, types=(ctypes.c_int64,)))

    # What was measured

    def trace(self) -> list[tuple[int, int, str, int, int]]:
        """Return the timeline of a cold start's first run, of a plan of memory of the last one.

        Of each span the core (0 executes, others prepare), the step, the stage, and when it began and ended, nanoseconds of the
        monotonic clock.
        """
        count, types = ctypes.c_size_t(), (_POINTER, _POINTER)

        def work() -> ctypes.Array[Span]:
            self._call("trace", None, ctypes.byref(count), types=types)
            spans = (Span * count.value)()
            self._call("trace", spans, ctypes.byref(count), types=types)
            return spans

        return [(s.core, s.step, STAGES[s.stage], s.begin_ns, s.end_ns) for s in self._ask(work)]

    def fact(self, name: str) -> float:
        """Return a number that the session knows; NaN where it knows none of that name."""
        found = self._ask(
            lambda: native.function("fact", ctypes.c_double, _POINTER, ctypes.c_char_p)(self.handle, name.encode())
        )
        return float(found)

    @property
    def cold_ms(self) -> float:
        """Return the time from opening to the first outputs, ms; 0 before them."""
        return self.fact("cold_ms")

    @property
    def continuous(self) -> bool:
        """Tell whether there are kernels of their own for later inferences, prepared as soon as processors are idle."""
        return self.fact("continuous") == 1

    def stages_ms(self) -> dict[str, float]:
        """Return sums over all cores of a cold start, ms: `open`, `read`, `create`, `transform` and `execute`."""
        sums = {"open": self.fact("opened_ms"), **dict.fromkeys(STAGES, 0.0)}
        for _, _, stage, begin, end in self.trace():
            sums[stage] += (end - begin) / _NS_PER_MS
        return sums

    def _close(self) -> None:
        native.function("close", None, _POINTER)(self.handle)
        self.handle = 0


def open_session(
    folder: str | os.PathLike[str],
    *,
    library: str = "",
    processors: Sequence[int] = (),
    continuous: bool | None = None,
    fixed: bool = False,
    budget: int = 0,
) -> NativeSession:
    """Open a plan folder of a cold start or of memory.

    Args:
        folder: of the plan.
        library: file of oneDNN; "": the one that is installed.
        processors: of a cold start, those that execute first, then those that only prepare; none: any.
        continuous: of a cold start, whether idle processors prepare the kernels of later runs; None: as it was planned.
        fixed: of a cold start, whether no processor takes preparations of another one.
        budget: of memory, bytes over idle to open within; 0: as it was planned.

    Raises:
        EdgeplanError: see `edgeplan.open_plan`.
    """
    chosen, count = library or next(installed_libraries(), ""), len(processors)
    options = _Options(
        ctypes.sizeof(_Options), os.fsencode(chosen) or None, (_INT * count)(*processors) if count else None, count,
        -1 if continuous is None else continuous, fixed, budget,
    )  # fmt: skip
    session, where = ctypes.c_void_p(), os.fspath(folder)
    checked("open", (ctypes.c_char_p, _POINTER, _POINTER), os.fsencode(where), ctypes.byref(options), ctypes.byref(session))
    return NativeSession(session.value or 0, where)


def checked(name: str, types: tuple[Any, ...], *arguments: Any, handle: int = 0) -> None:
    """Call a function of the library, by its name without `ep_`, that returns a status; without a handle, one of no session.

    Raises the EdgeplanError that the status stands for.
    """
    status = native.function(name, _INT, *types)(*arguments)
    if not status:
        return
    told = os.fsdecode(native.function("last_error", ctypes.c_char_p, _POINTER)(handle or None))
    rest, _, next_step = told.partition("\n  next:  ")
    what, _, where = rest.partition("\n  where: ")
    kind = _ERRORS.get(status, EdgeplanError)
    if kind is InfeasibleError:
        raise InfeasibleError(what, where=where, next_step=next_step, proven=False)
    raise kind(what, where=where, next_step=next_step)


def _buffers(found: Sequence[tuple[int, int]]) -> ctypes.Array[_Buffer]:
    """The C array of addresses and sizes."""
    return (_Buffer * len(found))(*(_Buffer(*one) for one in found))


def _in_place(value: Any) -> ctypes.Array[ctypes.c_char]:
    """Bytes as C sees them, of a buffer or, where it may not be written to, of a copy."""
    view = memoryview(value).cast("B") if not isinstance(value, memoryview) or value.format != "B" else value
    kind = ctypes.c_char * view.nbytes
    return kind.from_buffer_copy(view) if view.readonly else kind.from_buffer(view)
