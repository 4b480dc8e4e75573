"""Picks the wheels that a worker needs on a board from the hashed lock, for its Python, processor and C library."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

from edgeplan.engines.registry import ENGINES
from edgeplan.errors import DeviceError
from edgeplan.support.subprocesses import module_command, run

#: What the worker imports itself; what these need comes with them.
_WORKER = (*("numpy", "onnx", "protobuf", "msgspec", "pydantic", "pyyaml", "filelock", "threadpoolctl", "typer"),)
#: Processors that wheels are looked for, by what Python calls them.
ARCHITECTURES = ("x86_64", "aarch64")
_OLDEST_PYTHON, _OLDEST_GLIBC = (3, 11), 17
_DOWNLOAD_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class BoardTarget:
    """A target is what wheels have to fit.

    Attributes:
        python: version of the interpreter, e.g. (3, 11).
        architecture: name of the processor's architecture, as Python calls it.
        glibc: minor version of the GNU C library 2.
    """

    python: tuple[int, int]
    architecture: str
    glibc: int

    @property
    def told(self) -> str:
        """Describe the target in words."""
        return f"Python {self.python[0]}.{self.python[1]} on {self.architecture} with glibc 2.{self.glibc}"

    def require_supported(self, engine: str, where: str) -> None:
        """Refuse a board that no wheels are made for."""
        if self.python < _OLDEST_PYTHON:
            raise DeviceError(
                f"the board's Python is {self.python[0]}.{self.python[1]}, and the worker needs 3.11 or newer",
                where=where,
                next_step="install a newer one there (apt-get install python3.11 python3.11-venv, or uv python install 3.11), "
                "and name it: edgeplan device deploy NAME --python python3.11",
            )
        if self.architecture not in ARCHITECTURES:
            raise DeviceError(
                f"there are no wheels for the processor {self.architecture or 'unknown'}",
                where=where,
                next_step=f"take a board of {' or '.join(ARCHITECTURES)}; a 32-bit system on a 64-bit board is one of neither",
            )
        if self.glibc < _OLDEST_GLIBC:
            raise DeviceError(
                "the board has no GNU C library of 2.17 or newer, which the wheels are built for",
                where=where,
                next_step="use a system with glibc there, e.g. Debian in a container",
            )
        known = ENGINES.get(engine)
        if known is None or not known.wheels:
            raise DeviceError(
                f"the engine {engine!r} is brought by another package, whose wheels are not known",
                where=where,
                next_step=f"install it there by hand, or use one of {', '.join(n for n, e in ENGINES.items() if e.wheels)}",
            )
        if self.architecture not in known.architectures:
            here = [name for name, one in ENGINES.items() if one.wheels and self.architecture in one.architectures]
            raise DeviceError(
                f"there are no wheels of the engine {engine!r} for {self.architecture}",
                where=where,
                next_step=f"use {' or '.join(here)} there: edgeplan device init NAME --engine {here[0]}",
            )

    def tags(self) -> list[str]:
        """List platform tags of wheels that run there, the newest first."""
        old = ["manylinux2014"] if self.architecture != "x86_64" else ["manylinux2014", "manylinux2010", "manylinux1"]
        names = [f"manylinux_2_{minor}" for minor in range(self.glibc, 4, -1)] + old
        return [f"{name}_{self.architecture}" for name in names]

    def markers(self) -> dict[str, str]:
        """Give the values that markers of a lock are evaluated with."""
        version = f"{self.python[0]}.{self.python[1]}"
        return {
            "python_version": version,
            "python_full_version": f"{version}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "os_name": "posix",
            "sys_platform": "linux",
            "platform_system": "Linux",
            "platform_machine": self.architecture,
            "extra": "",
        }


def pinned(lock: str, engine: str, target: BoardTarget) -> list[str]:
    """Pick from a lock what a worker of an engine needs: lines of requirements, each with its hashes.

    Args:
        lock: text of a lock of uv: packages with markers, hashes and what each is needed by.
        engine: of the device.
        target: the board.
    """
    entries = list(_entries(lock))
    parents: dict[str, set[str]] = {}
    for entry in entries:
        parents.setdefault(entry.name, set()).update(entry.needed_by)
    wanted = {*_WORKER, *ENGINES[engine].wheels}
    if missing := sorted(wanted - parents.keys()):
        raise DeviceError(
            f"the lock does not hold {missing[0]}",
            where="requirements.lock",
            next_step="make lock, in a checkout that is whole",
        )
    while more := {name for name, by in parents.items() if by & wanted} - wanted:
        wanted |= more
    values = target.markers()
    return [
        " ".join([entry.requirement, *(f"--hash={one}" for one in entry.hashes)])
        for entry in entries
        if entry.name in wanted and (not entry.marker or Marker(entry.marker).evaluate(values))
    ]


@dataclass(frozen=True, slots=True)
class _Entry:
    """Describes a package of a lock."""

    name: str
    requirement: str
    marker: str
    hashes: tuple[str, ...]
    needed_by: frozenset[str]


def _entries(lock: str) -> Iterator[_Entry]:
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        head, *rest = block.splitlines()
        requirement, _, marker = head.removesuffix("\\").strip().partition(" ; ")
        if "==" not in requirement:
            continue
        comments = [line.strip().removeprefix("#").strip() for line in rest if line.strip().startswith("#")]
        by = frozenset(text.removeprefix("via").strip().split(" ")[0] for text in comments)
        yield _Entry(
            requirement.partition("==")[0].partition("[")[0],
            requirement,
            marker.strip(),
            tuple(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block)),
            by,
        )


def download(requirements: Path, folder: Path, target: BoardTarget, where: str) -> None:
    """Download wheels for a board by pip, each checked against the hashes of the lock."""
    version = "".join(map(str, target.python))
    platforms = [word for tag in target.tags() for word in ("--platform", tag)]
    abis = [word for abi in (f"cp{version}", "abi3", "none") for word in ("--abi", abi)]
    done = run(
        module_command(
            "pip",
            *("download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"),
            *("--dest", str(folder), "--requirement", str(requirements)),
            *("--python-version", ".".join(map(str, target.python)), "--implementation", "cp"),
            *(*abis, *platforms),
        ),
        timeout=_DOWNLOAD_SECONDS,
    )
    if done.returncode:
        said = done.stderr.decode(errors="backslashreplace").strip().splitlines()
        raise DeviceError(
            f"wheels for {target.told} cannot be had: {next(iter(said[::-1]), 'pip failed')[:400]}",
            where=where,
            next_step="check that this machine reaches a package index: "
            f"{Path(sys.executable).name} -m pip download numpy; a newer Python or an older C library may have none",
        )
