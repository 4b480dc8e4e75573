"""Heavy libraries are imported when something of them is first asked for.

A process that only reads a plan, prints help or predicts passes by many modules that could read models, train or draw; it
should not pay for libraries that it never calls. A library that is not installed is told apart at the same time.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any


class _Lazy(ModuleType):
    """A module stands for a library, and takes what it is asked for from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system and of tools that look at modules
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def lazily(name: str) -> Any:
    """Return a stand-in for a module, which is imported when an attribute of it is first asked for."""
    return _Lazy(name)
