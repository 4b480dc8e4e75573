"""A pair looked at: how its processors wait for each other, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.runtime.partitioned.handshake import handshake
from edgeplan.runtime.partitioned.session import Synchronisation

_RUNS = 200


def check_pair(pair: PairFile) -> list[str]:
    """Open a pair, and return as text how its processors wait for each other, and what that costs."""
    with machine_lock(), opened(pair) as found:
        return [*_lines(found)]


def _lines(found: Opened) -> Iterator[str]:
    yield f"pair        {found.pair.name}"
    for side, processor in zip(found.pair.processors, found.processors, strict=True):
        about = processor.capabilities
        on = f" on core(s) {', '.join(map(str, about.cores))}" if about.cores else ""
        yield f"{side.name:<12}{about.name}{on}; {about.version}"
    yield f"memory      shared: {found.other.capabilities.sharing}"
    yield f"waits by    {found.synchronisation}: {found.why}"
    for how in Synchronisation:
        try:
            made = handshake(*found.processors, how, _RUNS)
            yield f"handshake   by {how}: least {made.least_us:.1f} us, median {made.median_us:.1f} us a step"
        except DeviceError as error:
            yield f"handshake   by {how}: {error.what}"
