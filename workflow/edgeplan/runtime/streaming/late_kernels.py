"""Kernels that are made while the first inference runs, by the computing thread and by another one. Nothing heavy is imported.

The plan says who makes each, and when (`KernelOrder`). Where a step is reached before the other thread has begun its kernel,
the computing thread makes it: it would only wait.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from contextlib import ExitStack

import msgspec

from edgeplan.errors import FormatError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming.calls import DROP_EVERY, BoundCalls
from edgeplan.runtime.streaming.library_pages import LibraryPages
from edgeplan.runtime.streaming.program import AGAIN, NOTHING, StreamProgram
from edgeplan.runtime.streaming.reader import pin

_LIBC = ctypes.CDLL(None)


class KernelOrder(msgspec.Struct, frozen=True):
    """The order in which kernels of a first inference are made.

    Attributes:
        own: kernels that the computing thread makes, each with the step before which it does, by these steps.
        beside: kernels that another thread makes, in order.
    """

    own: tuple[tuple[int, int], ...] = ()
    beside: tuple[int, ...] = ()

    def require_fitting(self, program: StreamProgram) -> None:
        """Refuse an order that names kernels or steps that a program does not have.

        Raises:
            FormatError: it does.
        """
        kernels, steps = [*self.beside, *(kernel for kernel, _ in self.own)], [step for _, step in self.own]
        counts = len(program.kernels), len(program.step_names)
        for numbers, count in zip((kernels, steps), counts, strict=True):
            if not all(0 <= number < count for number in numbers):
                what = "the plan does not fit the program: no such kernels or steps"
                raise FormatError(what, where=program.model, next_step=AGAIN)


class LateKernels:
    """Makes the kernels of a program while it runs for the first time.

    Args:
        dnnl: the library.
        calls: of the program; its kernels are not made yet.
        order: of the kernels; those that it does not name are made when their step is reached.
        processors: that the other thread may use; empty: any.
        library: pages of it that are dropped now and then.
    """

    def __init__(
        self, dnnl: Dnnl, calls: BoundCalls, order: KernelOrder, processors: Sequence[int], library: LibraryPages
    ) -> None:
        self._calls, self._order, self._library, self._processors = calls, order, library, processors
        self._change = threading.Condition()
        self._begun = {number for number, ns in enumerate(calls.making_ns) if ns}
        self._ready = set(self._begun)
        self._error: BaseException | None = None
        self._stopped = False
        self._next = 0  # of the computing thread's own
        self._kernel_of = calls.columns.kernel_of
        self._uncached = ExitStack()
        self._uncached.enter_context(dnnl.without_primitive_cache())
        self._thread = threading.Thread(target=self._make_beside, name="kernels", daemon=True)
        if order.beside:
            self._thread.start()

    def before(self, step: int) -> None:
        """Make the kernels that the computing thread makes before a step.

        Raises:
            FormatError: one does not fit the program.
            DeviceError: the library does not offer one.
        """
        own = self._order.own
        while self._next < len(own) and own[self._next][1] <= step:
            self._make(own[self._next][0])
            self._next += 1

    def require(self, step: int) -> None:
        """Return once the kernel of a step is made.

        Raises:
            FormatError: a kernel does not fit the program.
            DeviceError: the library does not offer one.
        """
        kernel = self._kernel_of[step]
        if kernel == NOTHING or kernel in self._ready:
            return
        self._make(kernel)
        with self._change:
            while kernel not in self._ready and self._error is None:
                self._change.wait()
            if self._error is not None:
                raise self._error

    def finish(self) -> None:
        """Make all kernels that are not made, and let go of what making them needs.

        Raises:
            FormatError: a kernel does not fit the program.
            DeviceError: the library does not offer one.
        """
        try:
            for step in range(len(self._kernel_of)):
                self.require(step)
        finally:
            self.close()
        self._calls.made()
        self._library.made()
        if hasattr(_LIBC, "malloc_trim"):
            _LIBC.malloc_trim(0)  # what two threads have freed

    def close(self) -> None:
        """Begin no further kernels, and wait for the one at hand."""
        self._stopped = True
        if self._thread.ident is not None:
            self._thread.join()
        self._uncached.close()

    def _make_beside(self) -> None:
        pin(self._processors)
        try:
            for count, kernel in enumerate(self._order.beside, start=1):
                if self._stopped:
                    return
                self._make(kernel)
                if count % DROP_EVERY == 0:
                    self._library.drop()
        except BaseException:  # noqa: BLE001, S110  it is kept, and raised again where the kernel is waited for
            pass

    def _make(self, kernel: int) -> None:
        """Make a kernel that nobody has begun."""
        with self._change:
            if kernel in self._begun:
                return
            self._begun.add(kernel)
        try:
            self._calls.make(kernel)
        except BaseException as error:
            with self._change:
                self._error = error
                self._change.notify_all()
            raise
        with self._change:
            self._ready.add(kernel)
            self._change.notify_all()
