"""Descriptions tell the registry of an engine before anything of it is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any


class UnsupportedError(Exception):
    """A setting cannot run a model, or its engine is not installed; the message is the one-line reason for the results."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting names one way in which an engine is started, and what it is in the tables.

    Attributes:
        start: the module that starts it: a file that is run as a program of one's own is, never imported. What it is told and
            what it answers says `engines.program`.
        engine: the engine, by the name of its distribution.
        prepare: the function that builds what is started, as `module:function`, with the arguments of `engines.cold.as_it_is`;
            imported only in the process that prepares.
        options: what the program is told beside the model.
        starts_once: whether it is started when it is prepared, which leaves what later starts find, in a cache of the engine or
            of a driver, and tells whether there is a GPU.
        stores_work: whether its offline step stores work that the default repeats at every start (an optimised graph, compiled
            kernels, transformed weights); the "cached" settings of the tables.
        stock: whether it is an engine as shipped; ours is not.
        python: a variable of the environment: it may name the Python of an environment of its own that has the engine.
    """

    start: str
    engine: str
    title: str
    prepare: str = "edgeplan.engines.cold:as_it_is"
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    starts_once: bool = False
    stores_work: bool = False
    stock: bool = True
    python: str = ""

    @property
    def interpreter(self) -> str:
        """Return the Python that starts it."""
        return os.environ.get(self.python, "") or sys.executable

    @property
    def program(self) -> Path:
        """Return the file that starts it."""
        found = find_spec(self.start)
        if found is None or found.origin is None:
            raise ImportError(f"there is no module {self.start}")
        return Path(found.origin)


@dataclass(frozen=True, slots=True)
class Description:
    """A description names each face of an engine and imports none.

    Attributes:
        name: name by which device files ask for the engine.
        install: the command that installs it.
        session: its subclass of `engines.base.Engine` as `module:Class`; "" where it is started cold alone.
        settings: settings that can be started cold, by name.
        protocols: names of its measuring protocols, by face: "measure", times of models and kernels (since 2 interrupted runs
            do not count); "mapping", which operators a node holds that the engine counts; "cold" (since 2 a file that imports
            the engine alone starts it).
        earlier: names of earlier ones whose rows tables may be built from, too, by face.
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
    earlier: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    processor: str = ""
    wheels: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ("x86_64", "aarch64")
    gpu: bool = False


def named_object(name: str) -> Any:
    """Import the object that `module:attribute` names; ImportError where it, or something that it imports, is not there."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
