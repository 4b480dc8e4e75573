"""The two processors of a pair, opened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from edgeplan.devices.pairs import PairFile
from edgeplan.engines.pair import open_processors
from edgeplan.errors import DeviceError
from edgeplan.runtime.partitioned.document import ProcessorSpec
from edgeplan.runtime.partitioned.session import Synchronisation, synchronisation_of
from edgeplan.runtime.processor import Host, Processor, Sharing
from edgeplan.support.machine import fingerprint


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair at work.

    Attributes:
        pair: its file.
        processors: by lane; the first one is the host.
        synchronisation: how they wait for each other, as the file asks.
        why: it is that.
    """

    pair: PairFile
    processors: tuple[Host, Processor]
    synchronisation: Synchronisation
    why: str

    @property
    def host(self) -> Host:
        """The processor of lane 0."""
        return self.processors[0]

    @property
    def other(self) -> Processor:
        """The processor of lane 1."""
        return self.processors[1]

    @property
    def block(self) -> int:
        """Channels of a block of the layout `blocked16`."""
        return self.host.dnnl.info.block

    @property
    def names(self) -> tuple[str, str]:
        """Of the processors, as people read them."""
        return self.host.capabilities.name, self.other.capabilities.name

    @property
    def versions(self) -> tuple[str, str]:
        """Of their libraries."""
        return self.host.capabilities.version, self.other.capabilities.version

    @property
    def numbers(self) -> dict[str, int]:
        """What kernels of lane 1 are dispatched by."""
        return dict(self.other.numbers)

    @property
    def identity(self) -> list[object]:
        """What rows of the pair are for, besides its protocol."""
        cores, others = (list(side.cores) for side in self.pair.processors)
        own = [fingerprint(), *self.versions, self.numbers, cores, others if len(others) > 1 else next(iter(others), None)]
        unusual = {
            "synchronisation": self.pair.synchronisation if self.pair.synchronisation != "auto" else "",
            "sharing": self.other.capabilities.sharing.value if self.other.capabilities.sharing != Sharing.fine else "",
        }
        return [*own, *(f"{name}: {value}" for name, value in unusual.items() if value)]


@contextlib.contextmanager
def opened(pair: PairFile, *, profiling: bool = False) -> Iterator[Opened]:
    """Open both processors of a pair, and close them.

    Raises:
        DeviceError: one of them is not there, or the pair cannot synchronise as its file asks.
    """
    pair.check_cores()
    with contextlib.ExitStack() as stack:
        host, other = open_processors(specs_of(pair), stack, profiling=profiling)
        chosen, why = synchronisation(pair, host, other)
        yield Opened(pair, (host, other), chosen, why)


def specs_of(pair: PairFile) -> tuple[ProcessorSpec, ...]:
    """The processors of a pair, as plan folders name them."""
    sides = zip(pair.processors, pair.devices(), strict=True)
    return tuple(ProcessorSpec(device.engine, side.cores, dict(device.options)) for side, device in sides)


def synchronisation(pair: PairFile, host: Host, other: Processor) -> tuple[Synchronisation, str]:
    """How a pair waits, and why.

    Raises:
        DeviceError: its file asks for polling, which these processors cannot.
    """
    best, why = synchronisation_of(host, other)
    if pair.synchronisation == "auto":
        return best, why
    asked = Synchronisation(pair.synchronisation)
    if asked == Synchronisation.polling and best != asked:
        raise DeviceError(
            f"the pair cannot poll: {why}",
            where=f"pair {pair.name!r}, field synchronisation",
            next_step="synchronisation: auto, or events",
        )
    return asked, "the pair file asks for it"
