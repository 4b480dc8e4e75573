"""A model on the bench: its file, planner and plans are made when a part first asks for them, and kept for the next parts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.studies import StudiedModel
from edgeplan.errors import EdgeplanError, InfeasibleError
from edgeplan.planning.memory.quick import Mode

_STEP_BYTES = MIB // 8  # to which the least budget is looked for
_STEPS = 8


class ModelBench:
    """Keeps what parts of a model share.

    Args:
        subject: the model, whose file `save` writes; its folder is emptied first: a run that was killed may have left some.
        save: writes the model.
        stock: rows of stock engines, by setting, that were measured before.

    Attributes:
        stock: the same; parts that measure stock engines add to it.
    """

    def __init__(
        self, subject: StudiedModel, save: Callable[[Path], None], stock: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._subject, self._save, self.stock = subject, save, dict(stock or {})
        self._plans: dict[int, MemoryPlanned | EdgeplanError] = {}

    @cached_property
    def subject(self) -> StudiedModel:
        """Write the model into an empty folder."""
        shutil.rmtree(self._subject.work, ignore_errors=True)
        self._subject.work.mkdir(parents=True)
        self._save(self._subject.model)
        return self._subject

    @cached_property
    def planner(self) -> Planner:
        """The planner, and what it has profiled so far."""
        subject = self.subject
        (subject.work / "planner").mkdir()
        settings = subject.settings
        return Planner(subject.model, subject.work / "planner", settings.threads, subject.cores, settings.runs)

    @property
    def default(self) -> int:
        """Bytes that the first stock setting takes over idle; 0 where it does not run."""
        return int(self.stock.get(self._subject.settings.settings[0], {}).get("peak", 0))

    def budget(self, share: float) -> int:
        """Return the bytes of a share of what the first setting takes."""
        return int(share * self.default)

    def plan(self, budget: int) -> MemoryPlanned:
        """A plan for a budget; it is made once."""
        if budget not in self._plans:
            try:
                self._plans[budget] = self.planner.write(budget, Mode.back_to_back, self.subject.work / f"plan-{budget}")
            except EdgeplanError as error:
                self._plans[budget] = error
        found = self._plans[budget]
        if isinstance(found, EdgeplanError):
            raise found
        return found

    def plans(self) -> dict[float, MemoryPlanned]:
        """Plans for the shares of the settings that fit, by share."""
        found: dict[float, MemoryPlanned] = {}
        for share in self._subject.settings.shares:
            try:
                found[share] = self.plan(self.budget(share))
            except EdgeplanError:
                continue
        return found

    @cached_property
    def least(self) -> MemoryPlanned | None:
        """The plan for the least budget that a run holds, to an eighth of a MiB; None if none was found."""
        budget = -(-self.planner.least_bytes() // _STEP_BYTES) * _STEP_BYTES
        for _ in range(_STEPS):
            try:
                return self.planner.write(budget, Mode.back_to_back, self.subject.work / "plan-least")
            except TooSmallError as error:  # runs took more: less than what is enough for them is not worth a try
                budget = max(budget + _STEP_BYTES, -(-error.enough // _STEP_BYTES) * _STEP_BYTES)
            except InfeasibleError:
                budget += _STEP_BYTES
        return None

    def close(self) -> None:
        """Delete the folder with all plans."""
        shutil.rmtree(self._subject.work, ignore_errors=True)
