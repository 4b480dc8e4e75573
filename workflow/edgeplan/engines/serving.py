"""Opens a plan that a stock engine answers: the engine in a process of its own, which holds nothing of this package.

It is opened as it was measured when the plan was made, and asked through a pipe and files: of a run its own clock tells the
time. A program of one's own opens the engine itself, with as many threads and on the processors that the plan names.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from edgeplan.engines.cold import Artefact
from edgeplan.engines.program import Program
from edgeplan.engines.registry import owner, setting, version_of
from edgeplan.errors import DeviceError
from edgeplan.runtime.folder import EnginePlan, PlanFolder
from edgeplan.runtime.plan_session import Session
from edgeplan.support.machine import fingerprint
from edgeplan.support.tensors import Array

_YEARS_SECONDS = 1e8  # a session is open as long as its user wants


def installed_version(name: str) -> str:
    """Return the version of a setting's engine. DeviceError: it is not installed."""
    if not (found := version_of(name)):
        raise DeviceError(f"{setting(name).title} is not installed", where=name, next_step=owner(name).install)
    return found


class EngineSession(Session):
    """A model that a stock engine runs, by the plan of a folder."""

    winograd = False  # it does not tell

    def __init__(self, folder: PlanFolder) -> None:
        made = folder.program_of(EnginePlan)
        super().__init__(made.inputs, folder.path)
        folder.require_here(fingerprint(), installed_version(made.setting), "")
        for name in folder.files:
            folder.require_whole(name)
        main = folder.path / made.main if made.main else folder.require_model()
        companions = {role: folder.path / name for role, name in made.companions.items()}
        artefact = Artefact(main=main, files=(main,), companions=companions, outputs=made.shapes)
        self._names = [border.name for border in made.outputs]
        self._bound: Mapping[str, Array] = {b.name: np.zeros(b.shape, b.dtype) for b in made.inputs}
        with ExitStack() as stack:
            program = Program(
                made.setting, artefact, self._bound,
                threads=len(made.processors), processors=made.processors, timeout_seconds=_YEARS_SECONDS,
            )  # fmt: skip
            self._program = stack.enter_context(program)
            self._program.go()
            self._opened = stack.pop_all()

    def inference_ms(self, inputs: Mapping[str, Array]) -> float:
        """Run one inference; return what it took, by the engine's clock. The same mapping is not given to it again."""
        self._require_usable()
        if inputs is not self._bound:
            self._program.bind(inputs)
            self._bound = inputs
        return next(self._program.run(1))

    def outputs(self) -> dict[str, Array]:
        """Return the outputs of the last run."""
        return dict(zip(self._names, self._program.outputs(), strict=True))

    @staticmethod
    def spans_ms() -> tuple[tuple[float, float, float], ...]:
        """Return nothing: the engine does not tell its steps."""
        return ()

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        self.inference_ms(dict(inputs))  # another mapping each time: an array may have been written to
        return self.outputs()

    def _close(self) -> None:
        self._opened.close()
