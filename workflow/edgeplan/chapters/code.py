"""Digests the code of each stage, by which DVC tells what is current."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from edgeplan.chapters.base import Stage
from edgeplan.engines.registry import PROCESSORS
from edgeplan.support.protocols import essence, kernel_essence

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
#: Modules that word messages, check values, find files, declare stages, start and end processes: no result depends on them.
NEUTRAL = (
    *("__init__.py", "errors.py", "progress.py", "terminal.py", "workspace.py", "writable.py"),
    *("chapters/__init__.py", "chapters/base.py", "chapters/params.py", "chapters/registry.py", "chapters/*/chapter.py"),
    "chapters/prediction/settings.py",
    *("support/lifeline.py", "support/scratch.py", "support/subprocesses.py", "support/termination.py"),
    *("support/protocols.py", "chapters/*/protocols.py"),  # a new name comes with changed sources
)
#: Digests of the code of each stage, which DVC reads as params. Words, comments and where a module stands are no part of them.
CODE = Path("workflow/code.json")


def noted_code() -> Mapping[str, str]:
    """Read the digests in the workspace's file, by stage; none where it has none."""
    return json.loads(CODE.read_text(encoding="utf-8")) if CODE.is_file() else {}


def code_digest(stage: Stage) -> str:
    """Return the digest of a stage's code: of the modules that its function imports, and of sources beside them."""
    return digest(imported(stage.module))


def digest(modules: Iterable[Path]) -> str:
    """Digest modules: the same wherever they stand and whatever they are called, so that moving code builds nothing again."""
    given = set(modules)
    files = {path for module in given for path in (module, *_beside(module.parent))}
    if PACKAGE / "native.py" in given:
        files.update(path for path in (ROOT / "native/src").rglob("*") if path.is_file())
    return hashlib.sha256("".join(sorted(map(_file_digest, files))).encode()).hexdigest()[:16]


@cache
def _beside(folder: Path) -> tuple[Path, ...]:
    """Return sources beside modules that are no Python: OpenCL's, and the page's templates."""
    return () if folder == PACKAGE else tuple(path for path in sorted(folder.rglob("*")) if path.suffix in (".cl", ".h", ".j2"))


@cache
def _file_digest(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".j2":
        text = essence(text) if path.suffix == ".py" else kernel_essence(text)
    return hashlib.sha256(text.encode()).hexdigest()


def imported(module: str) -> set[Path]:
    """Find the files of the package that a module imports, directly or not, itself included; not through neutral ones."""
    seen: set[Path] = set()
    ahead = _files(module)
    while ahead:
        path = ahead.pop()
        if path not in seen and not _neutral(path):
            seen.add(path)
            ahead |= _imports(path)
    return {path for path in seen if not _says_nothing(path)}


def _neutral(path: Path) -> bool:
    relative = path.relative_to(PACKAGE)
    return any(len(relative.parts) == pattern.count("/") + 1 and relative.match(pattern) for pattern in NEUTRAL)


@cache
def _says_nothing(path: Path) -> bool:
    """Say whether a file holds its docstring alone."""
    return path.name == "__init__.py" and len(ast.parse(path.read_text(encoding="utf-8")).body) <= 1


def _files(name: str) -> set[Path]:
    """Return the files that importing `edgeplan.a.b` reads: the module and the packages above it."""
    parts = name.split(".")[1:]
    found = {PACKAGE.joinpath(*parts[:depth], "__init__.py") for depth in range(1, len(parts) + 1)}
    found.add(PACKAGE.joinpath(*parts).with_suffix(".py"))
    return {path for path in found if path.is_file()}


@cache
def _imports(path: Path) -> frozenset[Path]:
    return frozenset(found for name in _names(path) for found in _files(name))


def _names(path: Path) -> Iterator[str]:
    """Yield the modules of the package that a file imports, at its head or later."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "edgeplan":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "edgeplan")
    if path == PACKAGE / "devices/pairs.py":  # which imports the processors of pairs by their names
        own = (one.processor for one in PROCESSORS.values() if one.processor.startswith("edgeplan."))
        yield from (name.partition(":")[0] for name in own)
