"""A bundle is all that a worker needs, for one kind of board, in one archive: wheels with their hashes and a manifest."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

import edgeplan
from edgeplan import __version__
from edgeplan.errors import DeviceError
from edgeplan.measurement.board.wheels import BoardTarget, download, pinned
from edgeplan.native import PATH as LIBRARY
from edgeplan.support.files import files_sha256, write_atomically
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import module_command, run

_LOCK, _PROJECT = "requirements.lock", ("pyproject.toml", "README.md", "LICENSE")
#: A time for all files, so that the same tree makes the same bundle.
_EPOCH = "1577836800"


def bundle_digest(engine: str, target: BoardTarget) -> str:
    """Return the digest of what a bundle would hold, without making it: a board that has it is left alone."""
    parts = [target.told, *_requirements(engine, target), __version__, files_sha256(_package_files(target))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_bundle(engine: str, target: BoardTarget, path: Path, where: str) -> str:
    """Write a bundle for a kind of board; gives its digest.

    Args:
        engine: of the device.
        target: the board.
        path: of the archive.
        where: for messages.
    """
    digest, lines = bundle_digest(engine, target), _requirements(engine, target)
    with ScratchFolder("bundle") as made:
        folder = Path(made, "wheels")
        folder.mkdir()
        listed = Path(made, "requirements.txt")
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        download(listed, folder, target, where)
        own = _own_wheel(Path(made, "tree"), folder, target)
        (folder / "requirements.txt").write_text(
            "\n".join([*lines, f"edgeplan=={__version__} --hash=sha256:{files_sha256([own])}"]) + "\n", encoding="utf-8"
        )
        files = {file.name: files_sha256([file]) for file in sorted(folder.iterdir())}
        manifest = {
            "format_version": 1,
            "digest": digest,
            "engine": engine,
            "python": list(target.python),
            "architecture": target.architecture,
            "version": __version__,
            "files": files,
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        write_atomically(path, lambda temporary: _archive(temporary, ["manifest.json", *files], folder))
    return digest


def _archive(path: Path, names: Iterable[str], folder: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in names:
            archive.add(folder / name, arcname=name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who made a file and when."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(_EPOCH)
    return member


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
    target.require_supported(engine, target.told)
    return pinned((_root() / _LOCK).read_text(encoding="utf-8"), engine, target)


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
    done = run(
        module_command("pip", "wheel", *options, "--wheel-dir", str(folder), str(tree)),
        variables={"SOURCE_DATE_EPOCH": _EPOCH, "PYTHONHASHSEED": "0"},
    )
    found = sorted(folder.glob("edgeplan-*.whl"))
    if done.returncode or len(found) != 1:
        raise DeviceError(
            f"the wheel of edgeplan cannot be built: {done.stderr.decode(errors='backslashreplace').strip()[-400:]}",
            where=os.fspath(root),
            next_step="make environment, then run the same command again",
        )
    return found[0]
