"""Finds the OpenCL device that options name, and tells what the dispatcher asks of it.

PoCL, which computes on CPU cores, reads how many threads it may use from the environment when a process first asks it for its
devices, and its threads inherit the affinity of the thread that asks. Both are set here. Where the system has no PoCL, that of
a wheel serves, for which nobody has to be root; it is asked last, so that a driver of the system is preferred.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from edgeplan.errors import DeviceError
from edgeplan.support.machine import cpu_info

#: Widths of vectors, in floats, that kernels are written for.
VECTORS = (4, 8, 16)
SHARINGS = ("fine", "mirrored")
_KEYS = ("platform", "device", "cores", "vector", "sharing")
_WHERE = "the device file, field options"
_POCL = "Portable Computing Language"
_WHEEL = "pocl-binary-distribution"
_VENDORS = "/etc/OpenCL/vendors"


@dataclass(frozen=True, slots=True)
class OpenclOptions:
    """These options of a device file choose and set up an OpenCL device.

    Attributes:
        platform, device: parts of their names, whatever the case; "": the first.
        cores: CPU cores that PoCL computes on, each with a thread pinned to it; empty: one thread, where the system puts it.
        vector: floats in a vector of the kernels; 0: the most that the device computes with at once.
        sharing: the best way of sharing memory to use (`runtime.processor.Sharing`).
    """

    platform: str = ""
    device: str = ""
    cores: tuple[int, ...] = ()
    vector: int = 0
    sharing: str = SHARINGS[0]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> OpenclOptions:
        """Return options as device files write them, as text."""
        if unknown := sorted(given.keys() - set(_KEYS)):
            raise DeviceError(f"unknown option {unknown[0]!r}", where=_WHERE, next_step=f"known: {', '.join(_KEYS)}")
        vector, cores = given.get("vector", "0"), given.get("cores", "")
        if vector not in map(str, (0, *VECTORS)):
            raise DeviceError(f"vector is {vector!r}", where=_WHERE, next_step=f"one of {', '.join(map(str, VECTORS))}")
        named = [core.strip() for core in cores.split(",") if core.strip()]
        if not all(core.isascii() and core.isdigit() for core in named) or len(set(named)) < len(named):
            raise DeviceError(f"cores is {cores!r}", where=_WHERE, next_step="name different cores, as in cores: '1'")
        sharing = given.get("sharing", SHARINGS[0])
        if sharing not in SHARINGS:
            raise DeviceError(f"sharing is {sharing!r}", where=_WHERE, next_step=f"one of {', '.join(SHARINGS)}")
        return cls(given.get("platform", ""), given.get("device", ""), tuple(int(core) for core in named), int(vector), sharing)


@cache
def pyopencl() -> Any:
    """Import pyopencl, the Python binding of OpenCL."""
    try:
        import pyopencl  # noqa: PLC0415  an extra
    except ImportError as error:
        raise DeviceError(
            f"pyopencl is not installed: {error}", where="import of pyopencl", next_step="pip install 'edgeplan[partition]'"
        ) from error
    _prepare_loader()
    return pyopencl


def _prepare_loader() -> None:
    """Prepare OpenCL's loader, which reads its environment once: it sorts no platforms, and finds the wheel's library.

    That of pyopencl's own wheel reads the wheel's .icd by itself, behind those of the system. The file names a library without
    its folder, and is not read at all where the folder of the system's is named but not there: so the loader gets the library
    by its whole path where there are no other drivers.
    """
    os.environ["OCL_ICD_PLATFORM_SORT"] = "none"
    vendors = Path(os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH") or _VENDORS)
    if (library := _wheel()) is not None and not vendors.is_file() and not any(vendors.glob("*.icd")):
        os.environ["OCL_ICD_VENDORS"] = str(library)


def _wheel() -> Path | None:
    """Return the library of PoCL's wheel; None where it is not installed."""
    try:
        files = metadata.files(_WHEEL) or ()
    except metadata.PackageNotFoundError:
        return None
    libraries = [file for file in files if file.name.startswith("libpocl") and file.suffix == ".so"]
    return Path(str(libraries[0].locate())).resolve() if libraries else None


def reason(error: BaseException) -> str:
    """Return the message of an error of pyopencl as one line."""
    return " ".join(str(error).split()) or type(error).__name__


@dataclass(slots=True)
class _Started:
    """Tells about PoCL in this process: how many cores it was started for, and its threads once a device was asked for."""

    cores: int = 0
    threads: list[int] = field(default_factory=list)


_STARTED = _Started()


def find_device(options: OpenclOptions) -> Any:
    """Return the first OpenCL device (of pyopencl) that options name."""
    cl, count = pyopencl(), max(1, len(options.cores))
    if _STARTED.cores and len(options.cores) and _STARTED.cores != count:
        raise DeviceError(
            f"PoCL in this process computes on {_STARTED.cores} core(s), not on {count}",
            where=_WHERE,
            next_step="use the same number of cores for all devices of a process, or a process for each",
        )
    if not _STARTED.cores:
        _STARTED.cores = count
        for name in ("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"):
            os.environ[name] = str(count)
    before, own = _threads(), os.sched_getaffinity(0)
    try:
        if options.cores:
            os.sched_setaffinity(0, options.cores)
        found = _first(cl, options)
    except OSError as error:
        raise DeviceError(
            f"cannot use cores {', '.join(map(str, options.cores))}: {error.strerror}",
            where=_WHERE,
            next_step=f"name cores among {', '.join(map(str, sorted(own)))}",
        ) from error
    finally:
        os.sched_setaffinity(0, own)
    _STARTED.threads += sorted(_threads() - before)
    if options.cores:
        _pin(found, options.cores)
    return found


def started_cores() -> tuple[int, ...]:
    """Return the CPU cores that PoCL's threads in this process may use, as the system says."""
    found: set[int] = set()
    for thread in _STARTED.threads:
        with contextlib.suppress(OSError):  # it has ended
            found |= os.sched_getaffinity(thread)
    return tuple(sorted(found or os.sched_getaffinity(0)))


def _threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def _pin(device: Any, cores: Sequence[int]) -> None:
    if not is_pocl(device):
        raise DeviceError(
            f"the option cores is for PoCL, and {device.name} is no device of it",
            where=_WHERE,
            next_step="leave cores out, or name another platform",
        )
    for thread, core in zip(_STARTED.threads, cores, strict=False):
        os.sched_setaffinity(thread, {core})


def is_pocl(device: Any) -> bool:
    """Tell whether a device is CPU cores under PoCL."""
    return str(device.platform.name) == _POCL and bool(device.type & pyopencl().device_type.CPU)


def _first(cl: Any, options: OpenclOptions) -> Any:
    platforms = [one for one in _platforms(cl) if options.platform.lower() in one.name.lower()]
    there: dict[str, None] = {}
    for device in _devices(cl, platforms):
        if options.device.lower() in device.name.lower():
            return device
        there[f"{device.platform.name}: {device.name}"] = None
    found = there or dict.fromkeys(f"the platform {one.name}" for one in _platforms(cl))
    raise DeviceError(
        f"no OpenCL device {options.device!r} on a platform {options.platform!r}",
        where=_WHERE,
        next_step=f"there is {'; '.join(found)}",
    )


def _platforms(cl: Any) -> Sequence[Any]:
    try:
        found: Sequence[Any] = cl.get_platforms()
    except cl.Error as error:
        raise DeviceError(
            f"no OpenCL platform: {reason(error)}",
            where="clGetPlatformIDs",
            next_step=f"install the driver of the GPU, or OpenCL on a CPU core: pip install {_WHEEL} (x86-64), "
            "or apt install pocl-opencl-icd",
        ) from error
    return found


def _devices(cl: Any, platforms: Sequence[Any]) -> Iterator[Any]:
    """Yield devices in the order of preference: GPUs, what else has a driver of its own, the first PoCL that has any.

    To be asked for its devices starts PoCL's threads, so a second one (or the same, listed twice) is not asked.
    """
    real = [device for one in platforms if one.name != _POCL for device in _devices_of(cl, one)]
    yield from sorted(real, key=lambda device: not device.type & cl.device_type.GPU)
    for platform in platforms:
        if platform.name == _POCL and (found := _devices_of(cl, platform)):
            yield from found
            return


def _devices_of(cl: Any, platform: Any) -> Sequence[Any]:
    try:
        found: Sequence[Any] = platform.get_devices()
    except cl.Error:  # a platform without devices says so by an error
        return ()
    return found


def device_versions(device: Any) -> str:
    """Return platform, device and driver with their versions: what was built or measured is for one."""
    return f"{device.platform.version.strip()}; {device.name.strip()}; {device.driver_version.strip()}"


def driver_identity(device: Any) -> str:
    """Return the digest of a device, its driver and the processor that both run on: what once worked there works again."""
    parts = (device_versions(device), cpu_info())
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
