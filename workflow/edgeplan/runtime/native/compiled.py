"""How functions here are compiled, and where that is kept from one process to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable[..., object])
_HERE = Path(__file__).parent


def _folder() -> Path:
    """A place of its own for this content of the package: numba looks at the file of a function, not at what it calls."""
    sources = b"".join(path.read_bytes() for path in sorted(_HERE.glob("*.py")))
    return _HERE / "__pycache__" / f"compiled-{hashlib.sha256(sources).hexdigest()[:16]}"


_FOLDER = str(_folder())


def compiled(function: Function) -> Function:
    """Compile for the types that it is called with; meanwhile other threads have the interpreter."""
    before = config.CACHE_DIR  # type: ignore[attr-defined]  # set from the environment
    config.CACHE_DIR = _FOLDER  # type: ignore[attr-defined]  # where it cannot be written, numba has others
    try:
        found: Any = numba.njit(nogil=True, cache=True)(function)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]  # a dispatcher, called as the function is
