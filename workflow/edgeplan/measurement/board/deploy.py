"""Deploying brings edgeplan's worker to a board that may have no way to an index: `edgeplan device deploy`.

A bundle is all that a worker needs, for one kind of board, in one archive: wheels with their hashes and a manifest. The wheels
are picked from the hashed lock, for the board's Python, processor and C library.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from packaging.markers import Marker
from pydantic import BaseModel, ConfigDict, Field

import edgeplan
from edgeplan import __version__
from edgeplan.devices.config import CommandTransport, DeviceFile, SshTransport
from edgeplan.engines.registry import ENGINES
from edgeplan.errors import DeviceError
from edgeplan.measurement.board.link import start_failure
from edgeplan.native import PATH as LIBRARY
from edgeplan.support.files import files_sha256, validate
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import module_command, run

#: What the worker imports itself; what these need comes with them.
_WORKER = ("numpy", "onnx", "protobuf", "msgspec", "pydantic", "pyyaml", "filelock", "threadpoolctl", "typer")
#: Processors that wheels are looked for, by what Python calls them.
ARCHITECTURES = ("x86_64", "aarch64")
_OLDEST_PYTHON, _OLDEST_GLIBC = (3, 11), 17
_DOWNLOAD_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class BoardTarget:
    """A target is what wheels have to fit: Python, processor as Python calls it, minor version of the GNU C library 2."""

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
        """Give the values of markers of a lock that are others there than here."""
        version = f"{self.python[0]}.{self.python[1]}"
        return {"python_version": version, "python_full_version": f"{version}.0", "platform_machine": self.architecture}


def pinned_requirements(lock: str, engine: str, target: BoardTarget) -> list[str]:
    """Pick from a lock what a worker of an engine needs: lines of requirements, each with its hashes.

    `lock` is the text of a lock of uv: packages with markers, hashes and what each is needed by.
    """
    entries, parents = list(_entries(lock)), defaultdict[str, set[str]](set)
    for entry in entries:
        parents[entry.name] |= entry.needed_by
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
        f"{entry.requirement} {entry.hashes}"
        for entry in entries
        if entry.name in wanted and (not entry.marker or Marker(entry.marker).evaluate(values))
    ]


class _Entry(NamedTuple):
    """Describes a package of a lock."""

    name: str
    requirement: str
    marker: str
    hashes: str
    needed_by: set[str]


def _entries(lock: str) -> Iterator[_Entry]:
    for block in re.split(r"\n(?=[A-Za-z0-9])", lock):
        head, *rest = block.splitlines()
        requirement, _, marker = head.removesuffix("\\").strip().partition(" ; ")
        if "==" not in requirement:
            continue
        comments = [line.strip().removeprefix("#").strip() for line in rest if line.strip().startswith("#")]
        by = {text.removeprefix("via").strip().split(" ")[0] for text in comments}
        hashes = " ".join(re.findall(r"--hash=sha256:[0-9a-f]{64}", block))
        yield _Entry(re.split(r"==|\[", requirement)[0], requirement, marker.strip(), hashes, by)


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


_LOCK, _PROJECT = "requirements.lock", ("pyproject.toml", "README.md", "LICENSE")


def bundle_digest(engine: str, target: BoardTarget) -> str:
    """Return the digest of what a bundle would hold, without making it: a board that has it is left alone.

    The engine and the target are supported.
    """
    parts = [target.told, *_requirements(engine, target), __version__, files_sha256(_package_files(target))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_bundle(engine: str, target: BoardTarget, path: Path, digest: str, where: str) -> None:
    """Write the archive of an engine's bundle, of this digest, for a kind of board."""
    lines = _requirements(engine, target)
    with ScratchFolder("bundle") as made:
        folder = Path(made, "wheels")
        folder.mkdir()
        listed = folder / "requirements.txt"
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        download(listed, folder, target, where)
        own = _own_wheel(Path(made, "tree"), folder, target)
        with listed.open("a", encoding="utf-8") as file:
            file.write(f"edgeplan=={__version__} --hash=sha256:{files_sha256([own])}\n")
        files = {file.name: files_sha256([file]) for file in sorted(folder.iterdir())}
        (folder / "manifest.json").write_text(json.dumps({"digest": digest, "files": files}) + "\n", encoding="utf-8")
        with tarfile.open(path, "w") as archive:
            for name in ["manifest.json", *files]:
                archive.add(folder / name, arcname=name)


def _root() -> Path:
    """Return the checkout that this package runs from."""
    root = Path(edgeplan.__file__).parents[2]
    if not all((root / name).is_file() for name in (_LOCK, *_PROJECT)):
        raise DeviceError(
            "this edgeplan is not run from a checkout, which holds the lock of what boards get",
            where=str(root),
            next_step="clone the project and run the command there",
        )
    return root


def _requirements(engine: str, target: BoardTarget) -> list[str]:
    return pinned_requirements((_root() / _LOCK).read_text(encoding="utf-8"), engine, target)


def _left_out(target: BoardTarget) -> tuple[str, ...]:
    """Names of what a bundle lacks: a native library runs on its own architecture alone, and stock engines need none."""
    return ("__pycache__", *(() if target.architecture == platform.machine() else (Path(LIBRARY).name,)))


def _package_files(target: BoardTarget) -> list[Path]:
    root, without = _root(), {*_left_out(target)}
    package = sorted(p for p in (root / "workflow/edgeplan").rglob("*") if p.is_file() and not without & {*p.parts})
    return [root / "pyproject.toml", *package]


def _own_wheel(tree: Path, folder: Path, target: BoardTarget) -> Path:
    """Build the wheel of this package, from a copy of the tree."""
    root = _root()
    ignored = shutil.ignore_patterns(*_left_out(target))
    shutil.copytree(root / "workflow/edgeplan", tree / "workflow/edgeplan", ignore=ignored)
    for name in _PROJECT:
        shutil.copy(root / name, tree / name)
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation", "--no-index")
    done = run(module_command("pip", "wheel", *options, "--wheel-dir", str(folder), str(tree)))
    found = sorted(folder.glob("edgeplan-*.whl"))
    if done.returncode or len(found) != 1:
        raise DeviceError(
            f"the wheel of edgeplan cannot be built: {done.stderr.decode(errors='backslashreplace').strip()[-400:]}",
            where=os.fspath(root),
            next_step="make environment, then run the same command again",
        )
    return found[0]


_PROBE_SECONDS, _INSTALL_SECONDS = 120.0, 3600.0
_MOST_BYTES = 100_000


class BoardProbe(BaseModel):
    """Holds what a board's Python tells of the board and of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: tuple[Annotated[int, Field(ge=0, le=99)], Annotated[int, Field(ge=0, le=99)]]
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{0,32}$")]
    glibc: Annotated[int, Field(ge=0, le=999)]
    installed: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment tells what bundle (its digest) is there now, and the bytes sent, if it is a `fresh` one."""

    target: BoardTarget
    digest: str
    fresh: bool
    size_bytes: int


def deploy(device: DeviceFile, *, python: str = "python3", force: bool = False) -> Deployed:
    """Bring a worker to a board, unless it has this very one and nobody says `force`.

    `python` is the interpreter there that makes the environment.
    """
    where = f"device {device.name!r}"
    _require_reachable(device)
    told = validate(_asked(device, python, "probe", None, _PROBE_SECONDS), BoardProbe, DeviceError, "the board's answer", where)
    target = BoardTarget(told.python, told.architecture, told.glibc)
    if device.architecture and device.architecture != told.architecture:
        raise DeviceError(
            f"the board is a {told.architecture}, and its file says {device.architecture}",
            where=f"{where}, field architecture",
            next_step="correct the field, or the transport: another machine may have answered",
        )
    target.require_supported(device.engine, where)
    digest = bundle_digest(device.engine, target)
    if told.installed == digest and not force:
        return Deployed(target, digest, fresh=False, size_bytes=0)
    with ScratchFolder("deploy") as folder:
        archive = Path(folder, "bundle.tar")
        write_bundle(device.engine, target, archive, digest, where)
        found = _asked(device, python, "install", archive, _INSTALL_SECONDS)
        size = archive.stat().st_size
    if found.get("installed") != digest:
        needs_venv = "ensurepip" in str(found.get("error")) or found.get("venv") is True
        raise DeviceError(
            f"the board could not install it: {str(found.get('error', 'no reason'))[:600]}",
            where=where,
            next_step="install the module venv there: apt-get install python3-venv"
            if needs_venv
            else "what was there before is there still; free space on the board, then run the same command again",
        )
    return Deployed(target, digest, fresh=True, size_bytes=size)


def _require_reachable(device: DeviceFile) -> None:
    board = device.board
    if board is None:
        raise DeviceError(
            "the device is on this machine, where edgeplan is installed",
            where=f"device {device.name!r}, field transport",
            next_step="nothing is to be deployed; a board has transport: {kind: ssh, host: ...}",
        )
    if isinstance(board, CommandTransport) and not board.deploy:
        raise DeviceError(
            "the transport is a command, and it is not said how to run another one there",
            where=f"device {device.name!r}, field transport.deploy",
            next_step="name the command up to the interpreter, e.g. deploy: [docker, exec, -i, BOARD]",
        )


def _asked(
    device: DeviceFile, python: str, what: Literal["probe", "install"], archive: Path | None, timeout_s: float
) -> dict[str, Any]:
    """Run `install.py` on the board, and give what it prints."""
    board = device.board
    assert board is not None  # noqa: S101  who calls has looked
    script = Path(__file__).with_name("install.py").read_text(encoding="utf-8")
    words = (python, "-c", script, what)
    command = board.reaching(*words) if isinstance(board, SshTransport) else [*board.deploy, *words]
    try:
        with (archive or Path(os.devnull)).open("rb") as sent:
            done = subprocess.run(command, stdin=sent, capture_output=True, check=False, timeout=timeout_s)  # noqa: S603  no shell
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"the board did not answer in {timeout_s:g} s",
            where=f"device {device.name!r}",
            next_step="see whether it is up, then run the same command again: what was there before is there still",
        ) from error
    except OSError as error:
        raise start_failure(device, 127, f"{command[0]}: {error.strerror}") from error
    lines = done.stdout[-_MOST_BYTES:].decode(errors="backslashreplace").strip().splitlines()
    if done.returncode == 127:
        raise DeviceError(
            f"there is no {python} on the board",
            where=f"device {device.name!r} at {board.place}",
            next_step="install it there (apt-get install python3 python3-venv), or name another: --python",
        )
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        said = done.stderr[-_MOST_BYTES:].decode(errors="backslashreplace").strip()
        raise start_failure(device, done.returncode, said) from error
    if not isinstance(found, dict):
        raise start_failure(device, done.returncode, "no answer")
    return found
