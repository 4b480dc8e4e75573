"""Maps and calls machine code that was compiled before: the process that runs it needs no compiler.

An image is position-independent code with its constants, the offsets of its functions, and the words that addresses of the C
libraries' functions go to (`support.object_code` makes images). It is kept under a key of the processor, the compiler's version
and the sources. Where none is kept, or a file is damaged, a process of its own compiles: numba and LLVM take 150 MiB.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import itertools
import json
import logging
import mmap
import os
import stat
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.support.digests import sha256
from edgeplan.support.lazy import lazily
from edgeplan.writable import cache_base

if TYPE_CHECKING:
    from edgeplan.support import subprocesses
else:  # who finds its code compiled starts no process
    subprocesses = lazily("edgeplan.support.subprocesses")

log = logging.getLogger(__name__)

_MAGIC, _DIGEST_BYTES, _HEAD_BYTES = b"EDGECODE", 32, 4
_PACKAGE = Path(__file__).parents[1]
#: Entries that nobody loaded for so many days are removed; a loaded one is marked as used once a day.
UNUSED_DAYS = 60
DAY_S = 86400.0
_NO_COMPILER = "pip install numba, or run where the plan was made"
#: Fields of /proc/cpuinfo that say which instructions there are and which are fast.
_PROCESSOR = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "Features")
_C_LIBRARIES = (None, "libm.so.6")
_LIBC: Any = ctypes.CDLL(None, use_errno=True)


class Images(NamedTuple):
    """Images are compiled by one module.

    Attributes:
        builder: the module, whose `build(name)` compiles an image.
        sources: files that are compiled into them: globs in the package.
    """

    builder: str
    sources: tuple[str, ...]


def addresses(images: Images, names: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    """Map images, compiled if none are kept; return for each the addresses of its functions by name."""
    missing = [name for name in dict.fromkeys(names) if (images.builder, name) not in _MAPPED]
    found = {name: image for name in missing if (image := _kept(images, name)) is not None}
    if lacking := [name for name in missing if name not in found]:
        found |= _compiled(images, lacking)
    for name, image in found.items():
        _MAPPED[images.builder, name] = _map(name, image)
    return {name: _MAPPED[images.builder, name] for name in names}


_MAPPED: dict[tuple[str, str], Mapping[str, int]] = {}


def packed(code: bytes, head: Mapping[str, Any]) -> bytes:
    """Return an image as it is kept: its digest, its head and the bytes to be mapped."""
    text = json.dumps(head).encode()
    content = len(text).to_bytes(_HEAD_BYTES, "little") + text + code
    return b"".join((_MAGIC, sha256(content).digest(), content))


def _whole(image: bytes) -> bool:
    at = len(_MAGIC) + _DIGEST_BYTES
    return image.startswith(_MAGIC) and sha256(memoryview(image)[at:]).digest() == image[len(_MAGIC) : at]


def _map(name: str, image: bytes) -> Mapping[str, int]:
    """Map an image and fill in the addresses that it lacks; return those of its functions."""
    at = len(_MAGIC) + _DIGEST_BYTES
    size = int.from_bytes(image[at : at + _HEAD_BYTES], "little")
    at += _HEAD_BYTES
    head = json.loads(image[at : at + size])
    code = memoryview(image)[at + size :]
    base = _memory(head["bytes"], name)
    ctypes.memmove(base, bytes(code), len(code))
    for symbol, slot in head["imports"].items():
        ctypes.c_uint64.from_address(base + slot).value = _imported(symbol)
    for slot, target in head["pointers"]:
        ctypes.c_uint64.from_address(base + slot).value = base + target
    protect = _LIBC.mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, head["executable"], mmap.PROT_READ | mmap.PROT_EXEC):
        raise _cannot_map(name)
    return {function: base + offset for function, offset in head["functions"].items()}


def _memory(size: int, name: str) -> int:
    """Map memory that is never given back: libraries call the code in it at exit, after Python's last object."""
    take = _LIBC.mmap
    take.restype = ctypes.c_void_p
    take.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    base = take(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if base is None or base == ctypes.c_void_p(-1).value:
        raise _cannot_map(name)
    return int(base)


def _cannot_map(name: str) -> DeviceError:
    return DeviceError(
        f"compiled code cannot be mapped: {os.strerror(ctypes.get_errno())}",
        where=f"{name}, in this process",
        next_step="allow executable memory: the security policy of the system or container forbids it",
    )


def _imported(symbol: str) -> int:
    for library in _C_LIBRARIES:
        with suppress(AttributeError, OSError):
            return ctypes.cast(getattr(ctypes.CDLL(library), symbol), ctypes.c_void_p).value or 0
    raise DeviceError(
        f"the C libraries here have no {symbol}", where="compiled code", next_step="run on Linux with glibc, or plan here"
    )


# What is kept


def _kept(images: Images, name: str) -> bytes | None:
    """Return the image that is kept under a key; None if none is, or a damaged one, which is removed."""
    for folder in places():
        path = folder / _file_name(images, name)
        with suppress(OSError):
            image = path.read_bytes()
            if not _whole(image):
                path.unlink()
                continue
            if time.time() - path.stat().st_mtime > DAY_S:
                os.utime(path)
            return image
    return None


def _keep(images: Images, name: str, image: bytes) -> None:
    """Keep an image for other processes, if a folder can be written to."""
    if folder := writable():
        path = folder / _file_name(images, name)
        with suppress(OSError):  # a full disk: it is compiled again next time
            part = path.with_suffix(f".{os.getpid()}")
            part.write_bytes(image)
            part.replace(path)
            prune(folder)


@cache
def _file_name(images: Images, name: str) -> str:
    told = (name, _sources(images.sources), processor())
    return f"{name}-{sha256(repr(told).encode()).hexdigest()[:40]}.code"


@cache
def _sources(globs: tuple[str, ...]) -> str:
    """Return the digest of what is compiled, and of the versions of what compiles it."""
    state = sha256()
    for path in (*(path for glob in globs for path in sorted(_PACKAGE.glob(glob))), *_compilers()):
        state.update(path.read_bytes())
    return str(state.hexdigest())


def _compilers() -> Iterable[Path]:
    """Yield files that hold the versions of numba and llvmlite, where they are installed, and our own; none is imported."""
    for name in ("numba", "llvmlite"):
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            yield Path(found.origin).with_name("_version.py")
    yield _PACKAGE / "support" / "object_code.py"


@cache
def processor() -> str:
    """Name the processor that code is compiled for (Linux)."""
    fields = {}
    with suppress(OSError), open("/proc/cpuinfo") as file:  # noqa: PTH123  it ends with the first processor
        for line in file:
            if not line.strip():
                break
            key, _, value = line.partition(":")
            fields[key.strip()] = value.strip()
    return repr([fields.get(name, "") for name in _PROCESSOR])


@cache
def places() -> tuple[Path, ...]:
    """Return folders that may hold what was compiled: the user's cache, then one beside the sources, as trusted as these."""
    base, found = cache_base(), [_PACKAGE / "__pycache__" / "compiled"]
    if base:
        folder = Path(base) / "edgeplan" / "compiled"
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(OSError):
            about = folder.stat()
            if about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):  # code is loaded from it
                found.insert(0, folder)
    return tuple(found)


@cache
def writable() -> Path | None:
    """Return the first place that can be written to; None if none can be."""
    for folder in places():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


@cache
def prune(folder: Path) -> None:
    """Remove what was not used for long, once in a process that compiled something."""
    oldest = time.time() - UNUSED_DAYS * DAY_S
    for path in folder.iterdir():
        with suppress(OSError):  # another process was faster
            if path.stat().st_mtime < oldest:
                path.unlink()


# Compiling


@cache
def say_compiling(*, keeps: bool) -> None:
    """Log once a process that something is being compiled."""
    if keeps:
        log.info(
            "compiling for this processor, once (half a minute, longer beside other work; `edgeplan compile` does it ahead)"
        )
    else:
        log.warning("compiling for this processor, each time: neither the cache folder nor that of the package can be written")


def _compiled(images: Images, names: Sequence[str]) -> dict[str, bytes]:
    """Compile images, here where a compiler is loaded anyway, else in a process of its own, and keep them."""
    say_compiling(keeps=writable() is not None)
    if "numba" in sys.modules:
        found = [importlib.import_module(images.builder).build(name) for name in names]
    else:
        ended = subprocesses.run(subprocesses.module_command("edgeplan.support.machine_code", images.builder, *names))
        sizes = struct.unpack_from(f"<{len(names)}Q", ended.stdout.ljust(8 * len(names), b"\0"))
        ends = [*itertools.accumulate(sizes, initial=8 * len(names))]
        found = [ended.stdout[begin:end] for begin, end in itertools.pairwise(ends)]
        if ended.returncode or not all(map(_whole, found)):
            why = ended.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
            what = f"{', '.join(names)} cannot be compiled for this processor: {why[0]}"
            raise DeviceError(what, where="compiled code of the runtime", next_step=_NO_COMPILER)
    for name, image in zip(names, found, strict=True):
        _keep(images, name, image)
    return dict(zip(names, found, strict=True))


def main() -> None:
    """Compile a builder's images, both named on the command line; write their sizes, then the images, to stdout."""
    builder, *names = sys.argv[1:]
    try:
        images = [importlib.import_module(builder).build(name) for name in names]
    except EdgeplanError as error:
        sys.exit(error.what)
    sys.stdout.buffer.write(struct.pack(f"<{len(images)}Q", *map(len, images)) + b"".join(images))


if __name__ == "__main__":
    main()
