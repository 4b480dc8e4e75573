"""The two processors of a pair, opened."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from edgeplan.devices.machine import fingerprint
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import DeviceError
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.processors.base import Sharing
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.runtime.partitioned.session import Synchronisation, synchronisation_of


@dataclass(frozen=True, slots=True)
class Opened:
    """A pair at work.

    Attributes:
        pair: its file.
        cpu, gpu: the processors.
        synchronisation: how they wait for each other, as the file asks.
        why: it is that.
    """

    pair: PairFile
    cpu: OnednnProcessor
    gpu: OpenclProcessor
    synchronisation: Synchronisation
    why: str

    @property
    def names(self) -> tuple[str, str]:
        """Of the processors, as people read them."""
        return self.cpu.capabilities.name, self.gpu.capabilities.name

    @property
    def versions(self) -> tuple[str, str]:
        """Of their libraries."""
        return self.cpu.capabilities.version, self.gpu.capabilities.version

    @property
    def numbers(self) -> dict[str, int]:
        """What kernels are dispatched by."""
        return asdict(self.gpu.numbers)

    @property
    def identity(self) -> list[object]:
        """What rows of the pair are for, besides its protocol."""
        own = [fingerprint(), *self.versions, self.numbers, list(self.pair.cpu.cores), self.pair.gpu.core]
        unusual = {
            "synchronisation": self.pair.synchronisation if self.pair.synchronisation != "auto" else "",
            "threads": self.pair.cpu.threads if self.pair.cpu.threads != len(self.pair.cpu.cores) else "",
            "sharing": self.gpu.capabilities.sharing.value if self.gpu.capabilities.sharing != Sharing.fine else "",
        }
        return [*own, *(f"{name}: {value}" for name, value in unusual.items() if value)]


@contextlib.contextmanager
def opened(pair: PairFile, *, profiling: bool = False) -> Iterator[Opened]:
    """Open both processors of a pair, and close them.

    Raises:
        DeviceError: one of them is not there, or the pair cannot synchronise as its file asks.
    """
    pair.check_cores()
    _, gpu_device = pair.devices()
    options = dict(gpu_device.options)
    if pair.gpu.core is not None:
        options["cores"] = str(pair.gpu.core)
    with contextlib.ExitStack() as stack:
        cpu = stack.enter_context(OnednnProcessor(pair.cpu.cores[: pair.cpu.threads]))
        gpu = stack.enter_context(OpenclProcessor(OpenclOptions.of(options), cpu.dnnl.info.block, profiling=profiling))
        chosen, why = synchronisation(pair, cpu, gpu)
        yield Opened(pair, cpu, gpu, chosen, why)


def synchronisation(pair: PairFile, cpu: OnednnProcessor, gpu: OpenclProcessor) -> tuple[Synchronisation, str]:
    """How a pair waits, and why.

    Raises:
        DeviceError: its file asks for polling, which these processors cannot.
    """
    best, why = synchronisation_of(cpu, gpu)
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
