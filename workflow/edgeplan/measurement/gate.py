"""The gate of a board: no batch begins while it is hot, and none counts during which it was throttled."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgeplan.devices.config import GateSettings
from edgeplan.errors import NoiseError

log = logging.getLogger(__name__)
#: How often a batch that was throttled is measured again.
THROTTLED_AGAIN = 2
_LOOK_SECONDS = 5.0
#: A Raspberry Pi: its processor's frequency is capped, or it is throttled or too hot, now.
_PI_COMMAND, _PI_NOW = "vcgencmd", 0b1110


@dataclass(frozen=True, slots=True)
class GateLook:
    """Records one look at a board.

    Attributes:
        celsius: hottest thermal zone; None where none is exposed.
        throttles: how often its processors were throttled since it started.
        throttled: whether it says that it is throttled now.
    """

    celsius: float | None
    throttles: int
    throttled: bool


class Gate:
    """Looks at a board before and after a batch.

    Args:
        settings: when the board is fit.
        root: folder that the kernel's files lie below.
        pause: waits for some seconds between two looks.
    """

    def __init__(self, settings: GateSettings, root: Path = Path("/"), pause: Callable[[float], object] = time.sleep) -> None:
        self._settings, self._root, self._pause = settings, root, pause
        self._before = GateLook(None, 0, throttled=False)

    def wait(self) -> None:
        """Wait until the board is fit."""
        end = time.monotonic() + self._settings.wait_seconds
        told = ""
        while True:
            self._before = self.look()
            reason = self._unfit(self._before)
            if not reason:
                return
            if time.monotonic() >= end:
                raise NoiseError(
                    f"the board is not fit to measure: {reason}",
                    where=f"its state for {self._settings.wait_seconds:.0f} s, after which the wait ends",
                    next_step="cool it, end other work on it, set its governor; or change `gate` in the device file",
                )
            if reason.partition(":")[0] != told.partition(":")[0]:
                log.warning("a batch waits: %s", reason)
            told = reason
            self._pause(_LOOK_SECONDS)

    def disturbed(self) -> str:
        """Say why the batch since `wait` does not count; "" if it does."""
        after = self.look()
        if after.throttles > self._before.throttles or after.throttled:
            return "its processor was throttled"
        ceiling = self._settings.max_celsius
        if ceiling is not None and after.celsius is not None and after.celsius > ceiling:
            return f"it grew hotter than {ceiling:g} degrees: {after.celsius:.1f}"
        return ""

    def look(self) -> GateLook:
        """Look at temperature and throttling."""
        zones = [int(text) / 1000 for text in self._texts("sys/class/thermal/thermal_zone*/temp") if _whole(text)]
        counts = self._texts("sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
        return GateLook(max(zones, default=None), sum(int(text) for text in counts if _whole(text)), _pi_throttled())

    def _unfit(self, look: GateLook) -> str:
        settings = self._settings
        if settings.max_celsius is not None and look.celsius is not None and look.celsius > settings.max_celsius:
            return f"too hot: {look.celsius:.1f} degrees, and the gate lets up to {settings.max_celsius:g} pass"
        if look.throttled:
            return "throttled: its processor says so"
        governors = set(self._texts("sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"))
        if settings.governor and governors - {settings.governor}:
            return f"governor: it is {', '.join(sorted(governors))}, and the gate asks for {settings.governor}"
        return ""

    def _texts(self, pattern: str) -> list[str]:
        found = []
        for path in sorted(self._root.glob(pattern)):
            try:
                found.append(path.read_text(encoding="ascii").strip())
            except (OSError, ValueError):  # zones that are off cannot be read
                continue
        return found


def _whole(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _pi_throttled() -> bool:
    command = shutil.which(_PI_COMMAND)
    if command is None:
        return False
    try:
        done = subprocess.run([command, "get_throttled"], capture_output=True, text=True, check=False, timeout=5)  # noqa: S603  no shell
        return bool(int(done.stdout.strip().partition("=")[2] or "0", 0) & _PI_NOW)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return False
