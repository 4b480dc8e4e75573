"""How functions are compiled, and where that is kept from one process to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., object])


@cache
def _folder(package: Path) -> str:
    """A place of its own for this content of a package: numba looks at the file of a function, not at what it calls."""
    sources = b"".join(path.read_bytes() for path in sorted(package.glob("*.py")))
    return str(package / "__pycache__" / f"compiled-{hashlib.sha256(sources).hexdigest()[:16]}")


def compiled(function: Function) -> Function:
    """Compile for the types that it is called with; meanwhile other threads have the interpreter.

    What it calls has to be compiled in the same folder.
    """
    before = config.CACHE_DIR  # type: ignore[attr-defined]  # set from the environment
    # Where it cannot be written, numba has others.
    config.CACHE_DIR = _folder(Path(function.__code__.co_filename).parent)  # type: ignore[attr-defined]
    try:
        found: Any = numba.njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]  # a dispatcher, called as the function is
