"""Heavy libraries are imported when something of them is first asked for.

A process that only reads a plan, prints help or predicts passes by many modules that could read models, train or draw; it
should not pay for libraries that it never calls. A library that is not installed is told apart at the same time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

try:
    from _sha2 import sha256 as _lean  # type: ignore[import-not-found]  # Python 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256 as _lean  # type: ignore[import-not-found]  # Python 3.11
    except ImportError:  # an interpreter built without it
        from hashlib import sha256 as _lean


def sha256(content: bytes | bytearray | memoryview = b"") -> Any:
    """Return the hash of a content: OpenSSL's, which is five times as fast, where something else has loaded it."""
    loaded = sys.modules.get("hashlib")
    return (loaded.sha256 if loaded is not None else _lean)(content)


class _Lazy(ModuleType):
    """A module stands for a library, and takes what it is asked for from it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system and of tools that look at modules
            raise AttributeError(name)
        return getattr(import_module(self.__name__), name)


def lazily(name: str) -> Any:
    """Return a stand-in for a module, which is imported when an attribute of it is first asked for."""
    return _Lazy(name)
