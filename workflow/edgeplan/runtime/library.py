"""Finding and describing the installed oneDNN library."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

import msgspec

from edgeplan.errors import DeviceError
from edgeplan.runtime import constants
from edgeplan.runtime.installed import installed_libraries

_INSTALL = "pip install 'edgeplan[runtime]', or install a system oneDNN (libdnnl) of version 3"
_MAJOR = 3
_WIDE_BLOCK, _NARROW_BLOCK = 16, 8
#: Turns of libgomp's loop before a thread that waits for others sleeps.
SPINS = 1000
_SPINS_NAME = "GOMP_SPINCOUNT"
_CHOSEN_BY = ("OMP_WAIT_POLICY", _SPINS_NAME)  # who sets one of them has chosen


class _Version(ctypes.Structure):
    """This structure mirrors `dnnl_version_t` of the library."""

    _fields_: ClassVar = [
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
        ("gpu_runtime", ctypes.c_uint),
    ]


class LibraryInfo(msgspec.Struct, frozen=True):
    """These facts decide which kernels the library offers and what weight layouts they read.

    The version is `major.minor.patch`, the commit the hash of its sources; it threads by `OpenMP`, `TBB`, `sequential` or
    `threadpool`, and may use the instruction set here. A block of the layout `blocked16` has 16 channels with AVX-512, else 8.
    Products of bytes are summed up exactly or, without VNNI, saturate.
    """

    path: str
    version: str
    commit: str
    cpu_runtime: str
    isa: str
    block: int
    exact_bytes: bool = False


def _places() -> Iterator[str]:
    """Where the library may lie; each is looked for when those before it do not do."""
    yield from dict.fromkeys(filter(os.path.isfile, installed_libraries()))
    from ctypes.util import find_library  # noqa: PLC0415  it starts processes, for which few have to wait

    if system := find_library("dnnl"):
        yield system


def require_installed() -> None:
    """Refuse to go on where no oneDNN is found; nothing is loaded, and no lock of the machine waited for."""
    if next(_places(), None) is None:
        raise DeviceError("oneDNN is not installed", next_step=_INSTALL)


@contextmanager
def _bounded_waits() -> Iterator[None]:
    """Load the library within, as native code does (`native/src/library/onednn.cpp`, where it is said why).

    The environment is as before afterwards: processes that are started, and other engines with an OpenMP of their own, wait
    as they do without.
    """
    sets = not any(name in os.environ for name in _CHOSEN_BY)
    if sets:
        os.environ[_SPINS_NAME] = str(SPINS)
    try:
        yield
    finally:
        if sets:
            os.environ.pop(_SPINS_NAME, None)


def open_library() -> tuple[ctypes.CDLL, LibraryInfo]:
    """Load oneDNN: the wheel's library, else the system's."""
    problems = []
    for place in _places():
        try:
            with _bounded_waits():
                library = ctypes.CDLL(place)
        except OSError as error:
            problems.append(f"{place}: {error}")
            continue
        info = _describe(library, place)
        if int(info.version.split(".")[0]) == _MAJOR:
            return library, info
        problems.append(f"{place}: version {info.version}, not {_MAJOR}.x")
    raise DeviceError("oneDNN is not installed", where="; ".join(problems), next_step=_INSTALL)


def _describe(library: ctypes.CDLL, path: str) -> LibraryInfo:
    library.dnnl_version.restype = ctypes.POINTER(_Version)
    library.dnnl_version.argtypes = []
    version = library.dnnl_version().contents
    library.dnnl_get_effective_cpu_isa.restype = ctypes.c_int
    library.dnnl_get_effective_cpu_isa.argtypes = []
    isa = int(library.dnnl_get_effective_cpu_isa())
    wide = isa & constants.AVX512_CORE == constants.AVX512_CORE
    return LibraryInfo(
        path,
        f"{version.major}.{version.minor}.{version.patch}",
        version.hash.decode(),
        constants.RUNTIME_NAMES.get(version.cpu_runtime, str(version.cpu_runtime)),
        constants.ISA_NAMES.get(isa, hex(isa)),
        _WIDE_BLOCK if wide else _NARROW_BLOCK,
        isa & constants.EXACT_BYTES != 0,
    )


@cache
def computes_bytes() -> bool:
    """Tell whether the library computes in eight bits what is quantised so, with the instructions that it may use here."""
    return open_library()[1].exact_bytes
