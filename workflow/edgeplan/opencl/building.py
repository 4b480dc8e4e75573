"""This module builds kernels and remembers which of them a driver can build.

Drivers crash while they compile, so what was never built on a device is first built in a process of
its own.

What was built is remembered in the state folder of the user; drivers keep the code that they generated.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from edgeplan.errors import DeviceError, StoreError
from edgeplan.opencl.platforms import OpenclOptions, device_versions, driver_identity, find_device, pyopencl, reason
from edgeplan.support.files import state_folder
from edgeplan.support.workers import ColdRunError, work_apart

_SOURCES = Path(__file__).with_name("sources")
#: The language of kernels that stand alone: atomics that other processors see need 3.0. The others are of 1.2.
_STANDARD = {"poll": "CL3.0", "empty": "CL1.2"}
_TIMEOUT_SECONDS = 600.0


class ProgramSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program source has a text, and options by which it is compiled."""

    name: str
    text: str
    options: tuple[str, ...]


class _Job(msgspec.Struct, forbid_unknown_fields=True):
    """A job lists variants to try on a device, in order; a file is left in `folder` for each that was built."""

    device: dict[str, str | int | tuple[int, ...]]
    variants: list[ProgramSource]


class _Result(msgspec.Struct, forbid_unknown_fields=True):
    """A result tells how far building got: variants built, and the driver's words on the next one, if it refused it."""

    built: int
    problem: str = ""


@cache
def program_source(source: str, defines: tuple[tuple[str, int], ...]) -> ProgramSource:
    """Return a kernel file of `sources` with its macros."""
    text = (_text("common.h") if source not in _STANDARD else "") + _text(f"{source}.cl")
    name = f"{source} ({', '.join(f'{key} {value}' for key, value in defines)})"
    options = (f"-cl-std={_STANDARD.get(source, 'CL1.2')}", *(f"-D{key}={value}" for key, value in defines))
    return ProgramSource(name=name, text=text, options=options)


@cache
def _text(name: str) -> str:
    return (_SOURCES / name).read_text(encoding="utf-8")


@cache
def kernels_digest() -> str:
    """Return the digest of the texts of all kernels."""
    texts = [path.read_bytes() for path in sorted(_SOURCES.iterdir()) if path.is_file()]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


class Programs:
    """Programs are built for one context and kept; what was never built, first in a process of its own (`apart`)."""

    def __init__(self, context: Any, options: OpenclOptions, *, apart: bool = True) -> None:
        self._context, self._options, self._apart = context, options, apart
        (self._device,) = context.devices
        self._named, self._identity = device_versions(self._device), driver_identity(self._device)
        self._built: dict[ProgramSource, Any] = {}
        self._folder = remembered()

    def try_apart(self, variants: Iterable[ProgramSource]) -> None:
        """Build in another process what was never built on this device."""
        new = [one for one in dict.fromkeys(variants) if one not in self._built and not self._known(one)]
        if not new or not self._apart:
            return
        job = _Job(asdict(self._options), new)
        try:
            found = work_apart(__name__, job, _Result, "building OpenCL kernels", _TIMEOUT_SECONDS)
        except ColdRunError as error:
            left = [one.name for one in new if not self._known(one)]  # they are built in order
            raise DeviceError(
                f"the OpenCL driver fails while it builds kernels: {error.what}",
                where=f"{', '.join(left[: 1 if self._folder else None])} on {self._named}",
                next_step="install another version of the driver",
            ) from error
        if found.problem:
            raise self._refused(new[found.built], found.problem)

    def kernel(self, asked: ProgramSource, function: str) -> Any:
        """Return a kernel object of its own, whose arguments can be set."""
        if asked not in self._built:
            self.try_apart([asked])
            self.build(asked)
        return pyopencl().Kernel(self._built[asked], function)

    def build(self, asked: ProgramSource) -> None:
        """Build a source in this process, which generates code when a kernel first runs."""
        try:
            self._built[asked] = _build(self._context, asked)
        except pyopencl().Error as error:
            raise self._refused(asked, reason(error)) from error

    def binary(self, asked: ProgramSource) -> bytes:
        """Return the binary of a source that was built, for `load`: with the code that was generated when kernels ran."""
        cl = pyopencl()
        try:
            (found,) = self._built[asked].get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            raise self._refused(asked, reason(error)) from error
        return bytes(found)

    def load(self, asked: ProgramSource, binary: bytes) -> None:
        """Take the binary of a source that an earlier process compiled."""
        cl = pyopencl()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", cl.CompilerWarning)
                self._built[asked] = cl.Program(self._context, [self._device], [binary]).build(list(asked.options))
        except (cl.Error, ValueError) as error:
            raise self._refused(asked, reason(error)) from error

    def _refused(self, asked: ProgramSource, problem: str) -> DeviceError:
        return DeviceError(
            f"the OpenCL driver cannot build the kernel {asked.name}: {problem}",
            where=self._named,
            next_step="install another version of the driver, or name another vector in the options of the device file",
        )

    def _known(self, asked: ProgramSource) -> bool:
        return self._folder is not None and _mark(self._folder, self._identity, asked).exists()


def _build(context: Any, asked: ProgramSource) -> Any:
    cl = pyopencl()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)  # compilers talk
        return cl.Program(context, asked.text).build(list(asked.options), cache_dir=False)


def remembered() -> Path | None:
    """Return the folder that says what was built and tried on this machine; None where nothing can be kept."""
    try:
        folder = state_folder() / "opencl"
        folder.mkdir(parents=True, exist_ok=True)
    except (StoreError, OSError):
        return None
    return folder


def _mark(folder: Path, device: str, asked: ProgramSource) -> Path:
    content = "\0".join((device, asked.text, *asked.options))
    return folder / hashlib.sha256(content.encode()).hexdigest()


def _tried(context: Any, device: str, variants: Sequence[ProgramSource]) -> _Result:
    """Build variants until one is refused; code is generated, too, which a build alone may put off."""
    cl, folder = pyopencl(), remembered()
    for count, asked in enumerate(variants):
        try:
            _build(context, asked).get_info(cl.program_info.BINARIES)
        except cl.Error as error:
            return _Result(count, reason(error))
        if folder is not None:
            _mark(folder, device, asked).touch()
    return _Result(len(variants))


def main() -> None:
    """Do the job on stdin, answer on stdout."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=_Job)
    device = find_device(OpenclOptions(**job.device))  # type: ignore[arg-type]
    result = _tried(pyopencl().Context([device]), driver_identity(device), job.variants)
    sys.stdout.write(msgspec.json.encode(result).decode())


if __name__ == "__main__":
    main()
