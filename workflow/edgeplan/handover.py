"""Hands inferences over: a cold start answers on the host until a second processor is ready for the same model.

A GPU takes long to open: its driver, a context, kernels, weights. A plan folder may therefore hold a second one, `later/`. The
first answer is the host's. A thread opens the later plan: meanwhile, where the host leaves processors free, else behind the
first answer. It runs it on the first inputs. Where its outputs are the host's, both take turns for a few inferences; the faster
one answers all that follow. Whatever fails before then costs no answer: the host goes on. Once the later plan has taken over,
the host's is closed, and errors of the other are the caller's.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeplan.errors import EdgeplanError, FormatError
from edgeplan.runtime.folder import COLD_START, LATER_NAME, PLAN_NAME, PlanFolder, plan_again, read_folder
from edgeplan.runtime.plan_session import Session
from edgeplan.support.tensors import OUTPUT_TOLERANCE, relative_error

if TYPE_CHECKING:
    from edgeplan.runtime.native_session import NativeSession

_log = logging.getLogger(__name__)
_TURNS = 3  # inferences of each processor that are timed before one of them answers all others


class HandoverSession(Session):
    """A session answers by a cold start of the host, and goes over to a later plan where that is ready, right and faster.

    Args:
        folder: of the host's plan; `later` in it is the folder of the other.
        host: opens the host's plan.
        later: opens the other one; called in a thread of its own.

    Attributes:
        cold_ms: time from opening to the first outputs, ms; 0 before them.
        continuous: whether the host's plan has kernels of its own for later inferences.
        handed_over: number of the first inference, from 1 on, that the later plan answered for good; 0: none yet.
        stayed_because: why the host answers all inferences; "" while that is open, or where it does not.
    """

    def __init__(
        self, folder: str | PathLike[str], host: Callable[[], NativeSession], later: Callable[[PlanFolder], Session]
    ) -> None:
        before = os.sched_getaffinity(0)
        self._host = host()  # which prepares kernels while the other plan is looked at
        try:
            self._later_plan = _later_plan_of(Path(folder))
        except BaseException:
            self._host.close()
            raise
        super().__init__(self._host.inputs, folder)
        self.cold_ms, self.continuous, self._stages = 0.0, self._host.continuous, dict[str, float]()
        free = before - os.sched_getaffinity(0)
        self._processors, self._open_later = free or before, later
        self._later: Session | None = None
        self._ready, self._answered = threading.Event(), threading.Event()
        self._first_inputs: Mapping[str, Any] = {}
        self._expected: Mapping[str, Any] = {}
        self._times: dict[bool, list[float]] = {True: [], False: []}  # by whether the later plan ran
        self._count, self.handed_over, self.stayed_because = 0, 0, ""
        self._thread = threading.Thread(target=self._make_ready, name="edgeplan-later", daemon=True)
        if free:
            self._thread.start()

    def stages_ms(self) -> dict[str, float]:
        """Return the time of each stage of the host's cold start, ms."""
        return self._stages

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the later plan can take over or has failed, and tell whether it did; no wait before an answer."""
        return self._answered.is_set() and self._ready.wait(seconds)

    # Inferences

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self._count += 1
        if not self._answered.is_set():
            return self._begin(inputs)
        if self.handed_over:
            self._host.close()
            return self._later_run(inputs)
        if self.stayed_because or not self._ready.is_set():
            return self._host.run(inputs)
        return self._take_turns(inputs)

    def _begin(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run the first inference on the host; what it gave is what the later plan is held to."""
        outputs = self._host.run(inputs)
        self.cold_ms, self._stages = self._host.cold_ms, self._host.stages_ms()
        self._first_inputs = {name: np.array(value) for name, value in inputs.items()}
        self._expected = {name: np.array(value) for name, value in outputs.items()}
        self._answered.set()
        if not self._thread.ident:
            self._thread.start()
        return outputs

    def _make_ready(self) -> None:
        """Open the later plan and run it on the first inputs."""
        try:
            os.sched_setaffinity(0, self._processors)
            self._later = session = self._open_later(self._later_plan)
            self._answered.wait()
            if not self._expected:
                return  # closed before there was an answer
            found = session.run(self._first_inputs)
            apart = relative_error([found[name] for name in self._expected], list(self._expected.values()))
            if not apart <= OUTPUT_TOLERANCE:
                self._give_up(f"the later plan's outputs differ by {apart:.1e} of the largest magnitude")
        except Exception as error:  # noqa: BLE001  the host goes on, whatever a driver raises
            self._give_up(f"the later plan cannot be run: {error.what if isinstance(error, EdgeplanError) else repr(error)}")
        finally:
            self._ready.set()

    def _stay(self, why: str) -> None:
        """Have the host answer all inferences, and give the other processor back."""
        self.stayed_because = why
        if self._later is not None:
            self._later.close()
            self._later = None

    def _give_up(self, why: str) -> None:
        """Stay because the later plan is not right or fails, which is logged."""
        self._stay(why)
        _log.warning("%s: %s; the first plan answers all inferences", self._where, why)

    def _take_turns(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Time inferences of both processors in turns, and decide when each has had its own."""
        on_later = len(self._times[True]) <= len(self._times[False])
        began = time.perf_counter()
        try:
            outputs = self._later_run(inputs) if on_later else self._host.run(inputs)
        except EdgeplanError as error:
            if not on_later:
                raise
            self._give_up(f"the later plan failed: {error.what}")
            return self._host.run(inputs)
        self._times[on_later].append((time.perf_counter() - began) * 1e3)
        if min(map(len, self._times.values())) >= _TURNS:
            ours, others = min(self._times[False]), min(self._times[True])
            if others < ours:
                self.handed_over = self._count + 1
            else:
                self._stay(f"the host is as fast: {ours:.2f} ms, the later plan {others:.2f} ms")
        return outputs

    def _later_run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        session = self._later
        assert session is not None  # noqa: S101  it is ready
        return session.run(inputs)

    def _close(self) -> None:
        self._answered.set()
        if self._thread.ident:
            self._thread.join()
        if self._later is not None:
            self._later.close()
        self._host.close()


def _later_plan_of(folder: Path) -> PlanFolder:
    """The plan that takes over from a cold start."""
    found = read_folder(folder / LATER_NAME)
    if found.made_for.model_sha256 != read_folder(folder, COLD_START).made_for.model_sha256:
        what = "the later plan is of another model than the first"
        raise FormatError(what, where=str(found.path / PLAN_NAME), next_step=plan_again())
    return found
