"""Builds the kernels for CUDA: the sources that OpenCL devices run, behind a prelude, compiled by NVRTC and kept.

Machine code is kept in the state folder of the user, by the source, its options, the compiler and the driver. A file says what
its code must hash to: one that was cut short or changed is compiled again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from edgeplan.cuda.driver import Driver
from edgeplan.errors import DeviceError, StoreError
from edgeplan.opencl.building import ProgramSource, variant
from edgeplan.support.files import state_folder, write_atomically

_DIGEST_BYTES = 32
_KERNEL = re.compile(r"__kernel\s+void\s+(\w+)\s*\(")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_OPTIONS = ("--device-as-default-execution-space", "--std=c++17", "--diag-suppress=2473")


@cache
def translated(source: str, defines: tuple[tuple[str, int], ...]) -> ProgramSource:
    """Return a kernel file of `opencl/sources` with its macros, as CUDA C++."""
    found = variant(source, defines)
    options = (*_OPTIONS, *(option for option in found.options if option.startswith("-D")))
    return ProgramSource(name=found.name, text=_prelude() + found.text, options=options)


@cache
def _prelude() -> str:
    return Path(__file__).with_name("prelude.h").read_text(encoding="utf-8")


@cache
def merged(sources: tuple[ProgramSource, ...]) -> ProgramSource:
    """Return one program with the kernels of several translated sources, each kernel under its name in it (`merged_name`).

    Each source has a namespace and its own macros, which end with it; a driver loads the whole as one module.
    """
    prelude, parts = _prelude(), []
    lasting = set(_MACRO.findall(prelude))
    for number, source in enumerate(sources):
        text = source.text.removeprefix(prelude)
        given = [option.removeprefix("-D").partition("=") for option in source.options if option.startswith("-D")]
        kernels = [(name, "", merged_name(name, number)) for name in _KERNEL.findall(text)]
        own = [*_MACRO.findall(text), *(name for name, _, _ in (*given, *kernels))]
        begin = "".join(f"#define {name} {value}\n" for name, _, value in (*given, *kernels))
        end = "".join(f"#undef {name}\n" for name in dict.fromkeys(own) if name not in lasting)
        parts.append(f"{begin}namespace source_{number} {{\n{text}\n}}\n{end}")
    return ProgramSource(name=f"{len(sources)} sources", text=prelude + "".join(parts), options=_OPTIONS)


def merged_name(kernel: str, number: int) -> str:
    """Return the name of a kernel in a merged program."""
    return f"{kernel}_of_{number}"


class Modules:
    """Modules hold the kernels of one context, compiled at most once on a machine.

    Args:
        driver: of the GPU, whose context is current.
        architecture: of the GPU, such as "sm_90".
        identity: of the driver: code that another one was given is not loaded.

    Attributes:
        codes: machine code of the sources that `load` and `compile` were given.
    """

    def __init__(self, driver: Driver, architecture: str, identity: str) -> None:
        self._driver, self._architecture, self._identity = driver, architecture, identity
        self._loaded: dict[ProgramSource, Any] = {}
        self._places: dict[ProgramSource, tuple[ProgramSource, int]] = {}  # of sources in merged programs
        self._replaced: list[Any] = []
        self._lock = threading.Lock()
        self.codes: dict[ProgramSource, bytes] = {}

    @property
    def target(self) -> str:
        """Return the architecture and the driver that code is for."""
        return f"{self._architecture}; {self._identity}"

    def function(self, asked: ProgramSource, name: str) -> Any:
        """Return a kernel of a source."""
        if asked in self._places:
            asked, number = self._places[asked]
            name = merged_name(name, number)
        with self._lock:
            if asked not in self._loaded:
                self._loaded[asked] = self._driver.call("cuModuleLoadData", self._code(asked))
        return self._driver.call("cuModuleGetFunction", self._loaded[asked], name.encode())

    def take_from(self, whole: ProgramSource, sources: Sequence[ProgramSource]) -> None:
        """Take the kernels of sources from a merged program from now on."""
        self._places.update({source: (whole, number) for number, source in enumerate(sources)})

    def load(self, asked: ProgramSource, code: bytes) -> None:
        """Load machine code of a source that an earlier process compiled."""
        with self._lock:
            earlier = self._loaded.get(asked)
            self._loaded[asked] = self._driver.call("cuModuleLoadData", code)
            self.codes[asked] = code
            if earlier is not None:
                self._replaced.append(earlier)  # kernels that were made from it may still run

    def compile(self, asked: ProgramSource) -> None:
        """Compile a source, whatever was kept of it, and load it."""
        self.load(asked, self._fresh(asked))

    def code_of(self, asked: ProgramSource) -> bytes:
        """Return the machine code of a source, compiled now if it was not."""
        with self._lock:
            if asked not in self.codes:
                self.codes[asked] = self._fresh(asked)
            return self.codes[asked]

    def close(self) -> None:
        """Unload all; no kernel runs any more."""
        while self._loaded or self._replaced:
            module = self._replaced.pop() if self._replaced else self._loaded.popitem()[1]
            self._driver.call("cuModuleUnload", module)

    def _code(self, asked: ProgramSource) -> bytes:
        parts = (asked.text, *self._options(asked), self._driver.compiler, self._identity)
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        path, kept = None, b""
        with contextlib.suppress(StoreError, OSError):  # it is compiled, then
            path = state_folder() / "cuda" / f"{key}.cubin"
            kept = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(kept[_DIGEST_BYTES:]).digest() == kept[:_DIGEST_BYTES]:
            return kept[_DIGEST_BYTES:]
        code = self._fresh(asked)
        if path is not None:
            _keep(path, hashlib.sha256(code).digest() + code)
        return code

    def _options(self, asked: ProgramSource) -> list[str]:
        return [f"--gpu-architecture={self._architecture}", *asked.options]

    def _fresh(self, asked: ProgramSource) -> bytes:
        code = self._driver.compiled(asked.name, asked.text, self._options(asked))
        if not code:
            raise DeviceError("NVRTC gave no code", where=asked.name, next_step="install another version of nvidia-cuda-nvrtc")
        return code


def _keep(path: Path, content: bytes) -> None:
    with contextlib.suppress(StoreError, OSError):  # it is compiled again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write_bytes(content))
