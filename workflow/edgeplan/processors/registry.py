"""The processors that a pair is made of, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from edgeplan.errors import DeviceError
from edgeplan.processors.base import Processor

#: Name -> module and class.
PROCESSORS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "onednn": ("edgeplan.processors.onednn", "OnednnProcessor"),
        "opencl": ("edgeplan.processors.opencl", "OpenclProcessor"),
    }
)


def processor_class(name: str) -> type[Processor]:
    """The class of a processor.

    Raises:
        DeviceError: there is no such processor.
    """
    if name not in PROCESSORS:
        raise DeviceError(f"unknown processor {name!r}", where="the pair file", next_step=f"known: {', '.join(PROCESSORS)}")
    module, found = PROCESSORS[name]
    kind: type[Processor] = getattr(import_module(module), found)
    return kind
