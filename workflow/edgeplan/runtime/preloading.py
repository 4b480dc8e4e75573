"""The library is loaded by another thread while this one imports what uses it: both take as long. Imports next to nothing."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from edgeplan.runtime.waiting import bounded_waits

_RECORD, _ITS_FOLDER = "onednn_cpu_gomp-", ".dist-info"  # of the wheel: its list of the files that it has installed
_NOW = 2  # of dlopen(3)
_EXTENSIONS = "typing_extensions"
_threads: list[threading.Thread] = []


def wheel_libraries() -> Iterator[str]:
    """Yield the libraries of the wheel.

    The wheel's list of files is read here: `importlib.metadata` takes 2 MiB, which a small plan has not got to spare.
    """
    for folder in dict.fromkeys(sys.path):
        try:
            found = os.listdir(folder or ".")  # noqa: PTH208  pathlib takes time to be imported
        except OSError:
            continue
        for name in sorted(found):
            if name.startswith(_RECORD) and name.endswith(_ITS_FOLDER):
                yield from _listed(folder, os.path.join(folder, name, "RECORD"))  # noqa: PTH118  likewise


def _listed(folder: str, record: str) -> Iterator[str]:
    try:
        with open(record, encoding="utf-8") as file:  # noqa: PTH123  likewise
            names = [line.partition(",")[0] for line in file]
    except OSError:
        return
    for name in names:
        path = os.path.realpath(os.path.join(folder, name))  # noqa: PTH118  likewise
        if name.rpartition("/")[2].startswith("libdnnl.so") and os.path.isfile(path):  # noqa: PTH113  likewise
            yield path


def begin() -> None:
    """Begin to load the wheel's library, if there is one; who opens it waits for that (`wait`). Import msgspec meanwhile."""
    thread = threading.Thread(target=_load, name="loading", daemon=True)
    thread.start()
    _threads.append(thread)
    if _EXTENSIONS in sys.modules:
        return
    sys.modules[_EXTENSIONS] = None  # type: ignore[assignment]  # msgspec does without, and it takes as long as all else of it
    try:
        import msgspec  # noqa: F401, PLC0415  see above
    finally:
        del sys.modules[_EXTENSIONS]


def wait() -> None:
    """Wait until the library is loaded, where that has begun."""
    while _threads:
        _threads.pop().join()


def _load() -> None:
    """Load the library; whatever fails here is told where it is opened, if it fails there."""
    with suppress(Exception):
        if (path := next(wheel_libraries(), None)) is not None:
            function = ctypes.CDLL(None).dlopen  # unlike `ctypes.CDLL` of Python 3.11 it lets other threads run
            function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_void_p
            with bounded_waits():
                function(os.fsencode(path), _NOW)
