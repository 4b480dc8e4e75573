"""Descriptions tell the registry of an engine before anything of it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgeplan.engines.cold import Baseline


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting names one way in which an engine is started cold, and what it is in the tables.

    Attributes:
        cls: its class as `module:Class`; imported only in the process that measures or prepares it.
        engine: the engine, by the name of its distribution.
        title: name in the tables.
        stores_work: whether its offline step stores work that the default repeats at every start (an optimised graph, compiled
            kernels, transformed weights); the "cached" settings of the tables.
        stock: whether it is an engine as shipped; ours is not.
    """

    cls: str
    engine: str
    title: str
    stores_work: bool = False
    stock: bool = True

    def create(self) -> Baseline:
        """Return an instance of the setting's class, imported now."""
        created: Baseline = imported(self.cls)()
        return created


@dataclass(frozen=True, slots=True)
class Description:
    """A description names each face of an engine and imports none.

    Attributes:
        name: name by which device files ask for the engine.
        install: the command that installs it.
        session: its subclass of `engines.base.Engine` as `module:Class`; "" where it is started cold alone.
        settings: settings that can be started cold, by name.
        protocols: names of its measuring protocols, by face ("measure", "mapping", "cold"). Engines of this package have
            theirs in `support.protocols`.
        processor: its subclass of `runtime.processor.Processor` as `module:Class`; "" where it is no processor of pairs.
        wheels: packages that its libraries come in, which a board of its own is given; none where that cannot be done.
        architectures: processors that these packages are there for.
        gpu: whether it computes on a GPU, whose name is the third part of its version, between plus signs.
    """

    name: str
    install: str
    session: str = ""
    settings: Mapping[str, Setting] = field(default_factory=lambda: MappingProxyType({}))
    protocols: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    processor: str = ""
    wheels: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ("x86_64", "aarch64")
    gpu: bool = False


def imported(name: str) -> Any:
    """Import the object that `module:attribute` names.

    Raises:
        ImportError: the module, or something that it imports, is not there.
    """
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
