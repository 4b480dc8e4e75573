"""Where a loaded shared library keeps the addresses of the C functions that it imports (ELF, 64 bit)."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_LINK_MAP = 2  # RTLD_DI_LINKMAP of dlinfo
_SYMBOL_BYTES = 24
# tags of the dynamic section
_STRINGS, _SYMBOLS, _TABLE, _TABLE_BYTES, _CALLS_BYTES, _CALLS = 5, 6, 7, 8, 2, 23


class _LinkMap(ctypes.Structure):
    """The public head of `struct link_map`."""

    _fields_ = (("base", ctypes.c_uint64), ("name", ctypes.c_char_p), ("dynamic", ctypes.c_uint64))


def imports_of(path: str, names: Collection[str]) -> Mapping[str, int]:
    """Addresses of the words that hold where a library finds functions of others.

    Args:
        path: of the library, which is loaded.
        names: of the functions.

    Returns:
        Name -> address of the word, of those that the library imports; nothing where the system does not tell.
    """
    tell = getattr(ctypes.CDLL(None), "dlinfo", None)
    if tell is None or ctypes.sizeof(ctypes.c_void_p) != 8:  # bytes
        return {}
    found = ctypes.POINTER(_LinkMap)()
    tell.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    if tell(ctypes.CDLL(path)._handle, _LINK_MAP, ctypes.byref(found)):  # noqa: SLF001  ctypes has no public name
        return {}
    base = int(found.contents.base)
    tags = _dynamic(int(found.contents.dynamic))
    if not {_STRINGS, _SYMBOLS} <= tags.keys():
        return {}

    def place(tag: int) -> int:  # glibc has made addresses of offsets, others have not
        return tags[tag] if tags[tag] >= base else tags[tag] + base

    slots: dict[str, int] = {}
    for table, size in ((_CALLS, _CALLS_BYTES), (_TABLE, _TABLE_BYTES)):
        if table not in tags or len(slots) == len(names):  # the second one has ten times as many
            continue
        entries: Any = np.frombuffer(ctypes.string_at(place(table), tags[size]), np.uint64).reshape(-1, 3)
        for offset, info, _ in entries[entries[:, 1] >> np.uint64(32) > 0].tolist():
            symbol = place(_SYMBOLS) + (info >> 32) * _SYMBOL_BYTES
            text = place(_STRINGS) + ctypes.c_uint32.from_address(symbol).value
            name = ctypes.string_at(text).decode(errors="replace")
            if name in names:
                slots.setdefault(name, base + offset)
    return slots


def _dynamic(address: int) -> dict[int, int]:
    tags: dict[int, int] = {}
    while tag := ctypes.c_int64.from_address(address).value:
        tags.setdefault(tag, ctypes.c_uint64.from_address(address + 8).value)
        address += 16
    return tags


def replace(slot: int, function: int) -> bool:
    """Have a library call another function from here on.

    The page is writable while that is done, and as it was afterwards.

    Args:
        slot: from `imports_of`.
        function: address of a function of the same C type.
    """
    page, held = slot & -mmap.PAGESIZE, _writable(slot)
    if held is None:
        return False
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if not held and protect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        return False
    ctypes.c_uint64.from_address(slot).value = function
    if not held:
        protect(page, mmap.PAGESIZE, mmap.PROT_READ)
    return True


def _writable(address: int) -> bool | None:
    """Tell whether a word may be written to; None if it is not mapped."""
    for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines():
        span, permissions, *_ = line.split(maxsplit=2)
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return "w" in permissions
    return None
