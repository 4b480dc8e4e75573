"""Noisy subjects are measured again, kept with their noise, or, where that is refused, end the stage."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from edgeplan.errors import NoiseError
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.settings import MeasurementSettings
from edgeplan.support.cpus import calmer

log = logging.getLogger(__name__)
#: Time for coming back to noisy subjects, as a share of that of the first look at all.
COMING_BACK = 0.35
#: The share of noisy ones among fewer subjects than these says nothing of the machine.
_FEW = 16


class NoisePolicy:
    """A policy decides, over a stage, which measurements are kept.

    Args:
        settings: how noise is dealt with.
        device: its name, for messages.
    """

    def __init__(self, settings: MeasurementSettings, device: str) -> None:
        self._settings, self._device = settings, device
        self._seen, self._noisy = 0, dict[str, Measurement]()  # measured in this stage, and noisy still

    def is_noisy(self, subject: str) -> bool:
        """Tell whether a subject, by its id in the store, is noisy still."""
        return subject in self._noisy

    def first(self, measured: Sequence[Measurement]) -> tuple[list[Measurement], set[str]]:
        """Take note of first looks at subjects; gives what is kept of them, and the ids of the noisy ones."""
        loud = {m.subject: m for m in measured if m.noise > self._settings.max_noise}
        self._noisy |= loud
        self._seen += len(measured)
        return [m for m in measured if self._settings.on_noise == "keep" or m.subject not in loud], set(loud)

    def again(self, measured: Sequence[Measurement]) -> list[Measurement]:
        """Take note of further looks at noisy subjects, the less noisy look at each counts; gives what is kept of them."""
        better = []
        for new in measured:
            old = self._noisy[new.subject]
            best = replace(min(new, old, key=lambda m: m.noise), seconds=new.seconds + old.seconds)
            self._noisy[best.subject] = best
            better.append(best)
        quiet = [m for m in better if m.noise <= self._settings.max_noise]
        for m in quiet:
            del self._noisy[m.subject]
        return better if self._settings.on_noise == "keep" else quiet

    @property
    def _share(self) -> float:
        return len(self._noisy) / self._seen

    @property
    def _spread(self) -> str:
        return f"{100 * self._share:.0f} % of {self._seen} subjects spread by more than {100 * self._settings.max_noise:.0f} %"

    def tell(self) -> None:
        """Say once, at a stage's end, how much was kept that stayed noisy."""
        if self._noisy and self._settings.on_noise == "keep":
            log.warning("%s: they are kept with their noise, which weighs them and widens intervals", self._spread)

    def judge(self) -> list[Measurement]:
        """Say how much of what is refused stayed noisy; gives what of that is kept now."""
        if not self._noisy or self._settings.on_noise == "keep":
            return []
        share, limit, spread = self._share, self._settings.max_noisy_share, self._spread
        if self._seen < _FEW:  # chance decides the share of so few
            log.warning("%s: too few to judge by, they are kept", spread)
        elif share > limit:
            raise NoiseError(
                f"the machine is too noisy to measure: {spread} after {self._settings.retries} returns to them",
                where=f"device {self._device!r}",
                next_step=f"{calmer()}, check with: edgeplan device check {self._device}; or keep noisy figures, with "
                "their noise stated: measurement.on_noise=keep",
            )
        return list(self._noisy.values())
