"""Where oneDNN's library and edgeplan-run lie, and its words. Imports next to nothing: who opens a plan waits for this."""

# ruff: noqa: PTH110, PTH113, PTH118, PTH120, PTH123, PTH208  pathlib takes as long to be imported

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The program that runs plans without Python (`native/run`).
PROGRAM = os.path.join(os.path.dirname(os.path.dirname(__file__)), "edgeplan-run")
#: Inferences that it is asked for at most.
MOST_RUNS = 10_000
#: Names the library's file in place of those that are installed; native programs know it, too.
NAMED_BY = "EDGEPLAN_ONEDNN"
_RECORD, _ITS_FOLDER = "onednn_cpu_gomp-", ".dist-info"  # of the wheel: its list of the files that it has installed


def installed_libraries() -> Iterator[str]:
    """Yield the files that may be the library: the one that is named, else the wheel's, then those beside the interpreter."""
    if named := os.environ.get(NAMED_BY):
        yield named
        return
    yield from wheel_libraries()
    folder = os.path.join(sys.prefix, "lib")
    try:
        found = sorted(os.listdir(folder))
    except OSError:
        return
    yield from (os.path.realpath(os.path.join(folder, name)) for name in found if name.startswith("libdnnl.so"))


def wheel_libraries() -> Iterator[str]:
    """Yield the libraries of the wheel, by the wheel's list of files: `importlib.metadata` takes long to be imported."""
    for folder in dict.fromkeys(sys.path):
        try:
            found = os.listdir(folder or ".")
        except OSError:
            continue
        for name in sorted(found):
            if name.startswith(_RECORD) and name.endswith(_ITS_FOLDER):
                yield from _listed(folder, os.path.join(folder, name, "RECORD"))


def _listed(folder: str, record: str) -> Iterator[str]:
    try:
        with open(record, encoding="utf-8") as file:
            names = [line.partition(",")[0] for line in file]
    except OSError:
        return
    for name in names:
        path = os.path.realpath(os.path.join(folder, name))
        if name.rpartition("/")[2].startswith("libdnnl.so") and os.path.isfile(path):
            yield path


def runs_natively(folder: str) -> bool:
    """Tell whether edgeplan-run runs a plan folder: one of memory, or of a cold start that no other plan takes over from."""
    return os.path.exists(f"{folder}/program.bin") and not os.path.exists(f"{folder}/later/plan.json")


def words_for(folder: str, repeat: str) -> list[str]:
    """Return the arguments of edgeplan-run for a plan folder: with the library that is installed here."""
    return [folder, "--repeat", repeat, *(f"--library={found}" for found in [next(installed_libraries(), "")] if found)]
