"""Which part of the package may import which: the foundation no chapter, a chapter no other, planning next to nothing."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workflow/edgeplan"
#: What chapters stand on.
FOUNDATION = {
    *("support", "graph", "zoo", "engines", "devices", "measurement", "predictors", "profiling", "planning", "runtime"),
    *("reporting", "testing", "workloads", "opencl", "processors"),
}
#: Modules of the folder of the chapters that are no chapter: what one is, the list of them, and what goes over the list.
REGISTRY = {"base", "registry", "running", "check", "estimate", "wiring"}
#: Modules that word messages and find files, which every layer uses.
COMMON = {"errors", "terminal", "progress", "workspace", "writable"}
#: What planning may use besides the standard library and itself; modules of documents read and write files with a schema.
OF_PLANNING = {
    "numpy",
    "scipy",
    "numba",
    "ortools",
    "edgeplan.errors",
    "edgeplan.support.compiled",
    "edgeplan.support.topology",
}
OF_DOCUMENTS = {"pydantic", "edgeplan.support.files"}
DOCUMENTS = {
    f"edgeplan.planning.{name}"
    for name in ("document", "layout.csv_files", "memory.document", "partition.document", "partition.costs", "partition.plan")
}


def _module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _imports(module: str, *, late: bool = True) -> set[str]:
    """Modules that a module names in imports; `late` takes those inside functions, too. Those for types alone do not count."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not late:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        waiting += ast.iter_child_nodes(node)
    return found


def _part(module: str) -> tuple[str, str]:
    """Folder or module below the package, and what comes next: ("chapters", "prediction"), ("graph", "onnx")."""
    _, first, second, *_ = [*module.split("."), "", ""]
    return first, second


@pytest.mark.parametrize("folder", sorted(FOUNDATION))
def test_the_foundation_imports_no_chapter_and_nothing_above(folder: str) -> None:
    allowed = FOUNDATION | COMMON | {""}
    wrong = {
        f"{module} imports {name}"
        for module in MODULES
        if _part(module)[0] == folder
        for name in _imports(module)
        if name.split(".")[0] == "edgeplan" and _part(name)[0] not in allowed
    }
    assert not wrong


def test_a_chapter_imports_no_other_chapter_and_nothing_above() -> None:
    wrong = set()
    for module in MODULES:
        folder, chapter = _part(module)
        if folder != "chapters" or chapter in REGISTRY or not chapter:
            continue
        for name in _imports(module):
            if name.split(".")[0] != "edgeplan":
                continue
            other, part = _part(name)
            if other == "chapters" and part in {chapter, "base"}:
                continue
            if other not in FOUNDATION | COMMON:
                wrong.add(f"{module} imports {name}")
    assert not wrong


def test_planning_imports_numerics_and_itself_alone() -> None:
    wrong = set()
    for module in MODULES:
        planner = ".planners." in module
        if _part(module)[0] != "planning" and not planner:
            continue
        own = ("edgeplan.planning", module.rpartition(".")[0])
        allowed = OF_PLANNING | (OF_DOCUMENTS if module in DOCUMENTS else set())
        for name in _imports(module):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or name in allowed or top in allowed:
                continue
            if not name.startswith(own):
                wrong.add(f"{module} imports {name}")
    assert not wrong


def test_no_module_imports_itself_through_others() -> None:
    graph = {module: {name for name in _imports(module, late=False) if name in MODULES} for module in MODULES}
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        waiting = [(start, iter(sorted(graph[start])))]
        path.append(start)
        while waiting:
            module, ahead = waiting[-1]
            following = next((name for name in ahead if name not in done), None)
            if following is None:
                done.add(module)
                waiting.pop()
                path.pop()
                continue
            assert following not in path, " -> ".join([*path[path.index(following) :], following])
            path.append(following)
            waiting.append((following, iter(sorted(graph[following]))))


def test_every_folder_of_the_package_has_its_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert folders - FOUNDATION == {"chapters", "report", "cli"}
