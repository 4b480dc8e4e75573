"""How functions are compiled, and where that is kept from one process to the next."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import config

from edgeplan.errors import StoreError
from edgeplan.support.files import state_folder

log = logging.getLogger(__name__)
Function = TypeVar("Function", bound=Callable[..., object])


@cache
def _folder(package: Path, others: tuple[Path, ...] = ()) -> Path | None:
    """A place of its own for this content of a package: numba looks at the file of a function, not at what it calls.

    What else decides what is compiled are `others`.

    It is beside the sources or, where these cannot be written, in the state folder of the user; None if neither can be.
    """
    sources = b"".join(path.read_bytes() for path in (*sorted(package.glob("*.py")), *others))
    name = f"compiled-{hashlib.sha256(sources).hexdigest()[:16]}"
    for base in _places(package):
        folder = base / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            if not any(folder.rglob("*.nbi")):
                log.info("compiling %s for this processor, once (half a minute, longer beside other work)", package.name)
            return folder
    log.info("compiling %s for this processor, each time: neither its folder nor the state folder can be written", package.name)
    return None


def _places(package: Path) -> Iterator[Path]:
    yield package / "__pycache__"
    try:
        yield state_folder() / package.name
    except StoreError:  # a user without a home folder
        return


def compiled(function: Function) -> Function:
    """Compile for the types that it is called with; meanwhile other threads have the interpreter.

    What it calls has to be compiled in the same folder.
    """
    found: Any = _cached(function, lambda cache: numba.njit(nogil=True, cache=cache)(function))
    return found  # type: ignore[no-any-return]  # a dispatcher, called as the function is


def address_of(function: Callable[..., object], signature: Any, others: tuple[Path, ...] = ()) -> tuple[int, object]:
    """Compile a function that C calls: its address, and what must live as long as that is called.

    Divisions by zero and the like give what the processor gives: nobody would take an exception.

    Args:
        function: the function.
        signature: its types, of numba.
        others: files outside its folder of which something is compiled into it.
    """
    made = _cached(function, lambda cache: numba.cfunc(signature, cache=cache, error_model="numpy")(function), others)
    return int(made.address), made


def _cached(function: Callable[..., object], make: Callable[[bool], Any], others: tuple[Path, ...] = ()) -> Any:
    """What a decorator of numba makes, which asks for the place of its cache at once."""
    folder = _folder(Path(function.__code__.co_filename).parent, others)
    before = config.CACHE_DIR  # type: ignore[attr-defined]  # set from the environment
    config.CACHE_DIR = str(folder or "")  # type: ignore[attr-defined]
    try:
        return make(folder is not None)
    finally:
        config.CACHE_DIR = before  # type: ignore[attr-defined]
