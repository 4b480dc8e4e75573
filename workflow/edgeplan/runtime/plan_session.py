"""A plan that is open, whatever its kind: what all sessions have in common. Imports next to nothing."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod

from edgeplan.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Any, Self

    import numpy.typing as npt

    from edgeplan.support.tensors import ModelInput


class Closing:
    """What is closed when a `with` ends."""

    def close(self) -> None:
        """Free what it holds."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Session(Closing, ABC):
    """A plan that is open, and can be run, with the names, shapes and element types of its model's inputs.

    It is opened once and closed once, best by `with`. Between the two it is run any number of times, one inference at a time:
    what several threads ask of it is done one after the other. It belongs to the process that opened it: threads of the
    libraries do not follow into a fork, where it is refused.
    """

    def __init__(self, inputs: Sequence[ModelInput], folder: str | os.PathLike[str]) -> None:
        self.inputs = tuple(inputs)
        self._lock, self._process, self._where, self._is_closed = threading.Lock(), os.getpid(), os.fspath(folder), False

    def run(self, inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike) -> dict[str, Any]:
        """Run one inference of the plan.

        Args:
            inputs: arrays by name; of a model with one input the array alone will do.

        Returns:
            The outputs, by name.

        Raises:
            InputError: an input is missing, or of another name, type or shape.
            DeviceError: the session was closed, or is of the process that this one was forked from.
        """
        from edgeplan.support.tensors import checked_inputs  # noqa: PLC0415  this loads numpy

        values = checked_inputs(inputs, self.inputs)
        found: dict[str, Any] = self._ask(lambda: self._run(values))
        return found

    def _ask(self, work: Callable[[], Any]) -> Any:
        """Ask something of the session while no other thread does."""
        self._require_usable()  # before the lock: in a fork nobody opens it any more
        with self._lock:
            self._require_usable()
            return work()

    def _require_usable(self) -> None:
        if os.getpid() != self._process:
            raise in_fork(self._where)
        if self._is_closed:
            raise DeviceError("the session was closed", where=self._where, next_step="open the plan again")

    @abstractmethod
    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One inference on inputs that fit."""

    def close(self) -> None:
        """Free the session's memory; closing again does nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._close()

    @abstractmethod
    def _close(self) -> None:
        """Free everything that was opened, once."""


def in_fork(where: str) -> DeviceError:
    """The error in a process that was forked from one that had opened plans."""
    return DeviceError(
        "a process that opened a plan was forked: threads of the libraries did not follow",
        where=where,
        next_step="start a fresh process, as multiprocessing does by 'spawn', and open the plan there",
    )
