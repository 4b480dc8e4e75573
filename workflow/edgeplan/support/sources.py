"""Digests sources by what can change a result: what a module imports, without words about code and where it stands."""

from __future__ import annotations

import ast
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
ROOT = PACKAGE.parents[1]
#: Modules that word messages, check values, find files, declare stages, start and end processes: no result depends on them.
NEUTRAL = (
    *("__init__.py", "errors.py", "progress.py", "terminal.py", "workspace.py", "writable.py"),
    *("chapters/__init__.py", "chapters/base.py", "chapters/registry.py", "chapters/*/chapter.py"),
    "chapters/prediction/settings.py",
    *("support/lifeline.py", "support/scratch.py", "support/subprocesses.py", "support/termination.py"),
)


def digest(modules: Iterable[Path]) -> str:
    """Digest modules: the same wherever they stand and whatever they are called, so that moving code builds nothing again."""
    given = set(modules)
    files = {path for module in given for path in (module, *_beside(module.parent))}
    if PACKAGE / "native.py" in given:
        files.update(path for path in (ROOT / "native/src").rglob("*") if path.is_file())
    return hashlib.sha256("".join(sorted(map(file_digest, files))).encode()).hexdigest()[:16]


@cache
def _beside(folder: Path) -> tuple[Path, ...]:
    """Return sources beside modules that are no Python: OpenCL's, and the page's templates."""
    return () if folder == PACKAGE else tuple(path for path in sorted(folder.rglob("*")) if path.suffix in (".cl", ".h", ".j2"))


@cache
def file_digest(path: Path) -> str:
    """Digest what a file says, wherever it stands: without comments, docstrings, imports and white space."""
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


def essence(source: str) -> str:
    """Return Python source without what cannot change a number: comments, docstrings, imports and white space.

    Names, literals and the order of statements stay. The result is the same on every version of Python.
    """
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    kept = bytearray(b"".join(lines))
    for first, start, last, end in _left_out(source):
        begin, stop = starts[first - 1] + start, starts[last - 1] + end
        kept[begin:stop] = b" " * (stop - begin)
    return "".join(kept.decode().split())


def kernel_essence(source: str) -> str:
    """Return source of OpenCL or C++ without comments; white space, which ends macros there, as single characters."""
    told = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", source, flags=re.DOTALL)
    return re.sub(r"\s+", lambda space: "\n" if "\n" in space[0] else " ", told)


def _left_out(source: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield line and byte of the begin and the end of what a digest leaves out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield _span(node)
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                yield _span(first)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            begin = len(token.line[: token.start[1]].encode())
            yield token.start[0], begin, token.start[0], begin + len(token.string.encode())


def _span(node: ast.stmt) -> tuple[int, int, int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: S101, PT018  ast.parse sets them
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
