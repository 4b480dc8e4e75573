"""Measures energy by the processor's own counters (RAPL, Linux powercap), where the machine exposes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeplan.errors import DeviceError

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class Counter:
    """Names a package's energy counter, whose value wraps around at `range_uj`."""

    path: Path
    range_uj: int


def counters(folder: Path = _POWERCAP) -> tuple[Counter, ...]:
    """Find the energy counters of all processor packages.

    Raises:
        DeviceError: there are none, or they cannot be read.
    """
    # intel-rapl:0 is a package, intel-rapl:0:1 a part of it; AMD's counters have the same names
    found = [zone for zone in sorted(folder.glob("*rapl:*")) if zone.name.count(":") == 1]
    packages = [zone for zone in found if (zone / "energy_uj").exists()]
    if not packages:
        raise DeviceError(f"this machine exposes no energy counters (RAPL): none in {folder}", next_step="use another machine")
    return tuple(Counter(zone / "energy_uj", _number(zone / "max_energy_range_uj")) for zone in packages)


def read_uj(of: tuple[Counter, ...]) -> tuple[int, ...]:
    """Read the counters now, in microjoules.

    Raises:
        DeviceError: they cannot be read.
    """
    return tuple(_number(counter.path) for counter in of)


def spent_joules(of: tuple[Counter, ...], before: tuple[int, ...], after: tuple[int, ...]) -> float:
    """Return the joules between two readings, a counter that wrapped around once included."""
    return sum((b - a) % (counter.range_uj + 1) for counter, a, b in zip(of, before, after, strict=True)) / 1e6


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except OSError as error:
        what = f"the energy counters (RAPL) cannot be read: {error.strerror}"
        raise DeviceError(what, where=str(error.filename), next_step="read them as root") from error
