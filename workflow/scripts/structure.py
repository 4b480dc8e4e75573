"""Prints figures of the package's structure, which `tests/scripts/test_structure.py` holds to bars: `make structure`.

* A *code line* is not blank and belongs to no comment, docstring or import.
* A package may import those before it in `FLOORS`; an *arrow up* is a module's import from a
  package after its own. Imports inside functions and for type checkers count, but not what a
  package's `__init__` hands on lazily.
* A *circle* is a group of modules, or of packages, that import each other in a loop.
* A *homonym* is a public name that stands for several classes.
* A *walk* follows the folder that `edgeplan run` is given to the native loop (`walks.py`), for each
  kind of plan. Its figures: stays in a file, different files, returns to a file that it was in
  before, and functions.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from walks import Function, Tree, walk

ROOT = Path(__file__).parents[2]
#: Packages of the foundation and modules beside them, the lowest first: each imports those before it alone.
FLOORS = (
    *("terminal", "errors", "progress", "writable", "support", "workspace", "graph", "zoo", "workloads", "planning", "runtime"),
    *("opencl", "cuda", "processors", "engines", "gpu_start", "handover", "opening", "devices"),
    *("measurement", "predictors", "profiling", "reporting", "testing"),
)
#: Where the command gets its folder, and the classes of what an inference answers.
COMMAND, FOLDER = "edgeplan.cli.run.run_folder", "folder"
ANSWERS = {"Run", "Phase", "RunResult"}
#: What belongs to one kind of plan: functions, and modules and packages with all in them.
KINDS = {
    "cold start": (
        *("runs._run_cold", "measurement.process.starts"),
        *("chapters.cold_start", "runtime.cold_executor"),
    ),
    "cold start on a GPU": (
        *("runs._run_gpu", "cli.gpu_start", "gpu_start", "runtime.gpu_program", "measurement.process.gpu_starts"),
    ),
    "cold start that goes over": ("handover",),
    "memory": ("runs._run_budgets", "cli.memory", "cli.run_memory", "chapters.memory", "runtime.streaming"),
    "pair": ("runs._run_pair", "engines.pair", "cli.run_pair", "chapters.partition", "runtime.partitioned", "processors"),
}
#: What comes after the loop: a cache that was damaged is written again, and outputs are compared.
AFTER = ("edgeplan.runtime.renewal", "edgeplan.checking.reference_apart")
#: What a plan of memory goes to from the command to be refused alone: the command runs it in a process of its own kind.
REFUSING = {"memory": ("edgeplan.runs",)}


def code_lines(path: Path) -> int:
    """Count the lines of a file that are neither blank nor a comment, a docstring or an import."""
    text, dropped = path.read_text(encoding="utf-8"), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            dropped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | Function) and ast.get_docstring(node) is not None:
            dropped.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    return sum(bool(line) and not line.startswith("#") and number not in dropped for number, line in lines)


def arrows_up(tree: Tree, floors: Sequence[str] = FLOORS) -> list[str]:
    """Imports from a package of the foundation to one after it, or to what is no part of it."""
    heights = {name: number for number, name in enumerate(floors)}
    return sorted(
        f"{module} imports {name}"
        for module in tree.paths
        for name in set(tree.imports(module))
        if _part(module) in heights and name.startswith("edgeplan.")
        if heights.get(_part(name), len(heights)) > heights[_part(module)]
    )


def circles(tree: Tree, *, of_packages: bool = False) -> list[list[str]]:
    """Groups of modules, or of folders and modules of the package's top, that import each other in a loop."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module in tree.paths:
        for name in tree.imports(module):
            ends = (_part(module), _part(name)) if of_packages else (module, name)
            if name in tree.paths and ends[0] != ends[1] and all(ends):
                graph[ends[0]].add(ends[1])
    reached = {start: _reached(graph, start) for start in graph}
    groups = {tuple(sorted(b for b in reached[a] if a in reached.get(b, ()))) for a in graph if a in reached[a]}
    return [list(group) for group in sorted(groups)]


def homonyms(tree: Tree) -> dict[str, list[str]]:
    """Public names of classes that stand for several, and where these are."""
    places = defaultdict(list)
    for name in tree.classes:
        if tree.module(name) == name.rpartition(".")[0] and not name.rpartition(".")[2].startswith("_"):
            places[name.rpartition(".")[2]].append(tree.module(name))
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def _part(module: str) -> str:
    return [*module.split("."), ""][1]


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    reached, waiting = set[str](), [start]
    while waiting:
        new = graph.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _left_out(kind: str) -> list[str]:
    others = [f"edgeplan.{name}" for other, names in KINDS.items() if other != kind for name in names]
    return [*others, *AFTER, *REFUSING.get(kind, ())]


def figures(root: Path = ROOT) -> dict[str, int]:
    """The figures that bars are set for."""
    tree = Tree(root / "workflow/edgeplan")
    walks = {kind: walk(tree, COMMAND, FOLDER, _left_out(kind), ANSWERS) for kind in KINDS}
    return {
        **{f"code lines of {part}": sum(map(code_lines, (root / part).rglob("*.py"))) for part in ("workflow", "tests")},
        "arrows up": len(arrows_up(tree)),
        "circles of modules": len(circles(tree)),
        "circles of packages": len(circles(tree, of_packages=True)),
        "public homonyms": len(homonyms(tree)),
        "imports inside functions": len(tree.inside_functions()),
        **{f"walk, {kind}: {name}": number for kind, found in walks.items() for name, number in found.figures().items()},
    }


if __name__ == "__main__":
    for name, number in figures().items():
        print(f"{number:>7}  {name}")  # noqa: T201  its output
