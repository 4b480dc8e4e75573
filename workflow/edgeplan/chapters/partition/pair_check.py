"""A pair looked at: how its processors wait for each other, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.runtime.partitioned.handshake import Handshake, handshake
from edgeplan.runtime.partitioned.session import Synchronisation


@dataclass(frozen=True, slots=True)
class PairCheck:
    """What a look at a pair found.

    Attributes:
        pair: its file.
        names, versions: of both processors.
        cores: of each; none for a processor of its own.
        sharing: how memory is shared.
        synchronisation: how they wait for each other.
        why: it is that.
        handshakes: by way of waiting; a text where one cannot be.
    """

    pair: PairFile
    names: tuple[str, str]
    versions: tuple[str, str]
    cores: tuple[tuple[int, ...], tuple[int, ...]]
    sharing: str
    synchronisation: Synchronisation
    why: str
    handshakes: Mapping[Synchronisation, Handshake | str]


def check_pair(pair: PairFile, runs: int = 200) -> PairCheck:
    """Open a pair, say how its processors wait for each other, and measure what that costs.

    Raises:
        DeviceError: a processor is not there, or the pair cannot wait as its file asks.
        BusyError: another process is measuring.
    """
    pair.check_cores()
    with machine_lock(), opened(pair) as found:
        handshakes = {how: _handshake(found, how, runs) for how in Synchronisation}
        one, other = (processor.capabilities for processor in found.processors)
        return PairCheck(
            pair,
            found.names,
            found.versions,
            (one.cores, other.cores),
            str(other.sharing),
            found.synchronisation,
            found.why,
            handshakes,
        )


def _handshake(pair: Opened, how: Synchronisation, runs: int) -> Handshake | str:
    try:
        return handshake(*pair.processors, how, runs)
    except DeviceError as error:
        return error.what


def check_lines(found: PairCheck) -> list[str]:
    """The look as lines of text."""
    lines = [f"pair        {found.pair.name}"]
    for side, name, version, cores in zip(found.pair.processors, found.names, found.versions, found.cores, strict=True):
        on = f" on core(s) {', '.join(map(str, cores))}" if cores else ""
        lines.append(f"{side.name:<12}{name}{on}; {version}")
    lines += [f"memory      shared: {found.sharing}", f"waits by    {found.synchronisation}: {found.why}"]
    for how, made in found.handshakes.items():
        told = made if isinstance(made, str) else f"least {made.least_us:.1f} us, median {made.median_us:.1f} us a step"
        lines.append(f"handshake   by {how}: {told}")
    return lines
