"""Parts of the package import those below them: the foundation no chapter, a chapter no other, planning next to nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))

from structure import FLOORS, arrows_up, circles
from walks import Tree

LANE = "texts"  # see tests/conftest.py

#: Modules of the folder of the chapters that are no chapter: what one is, the list of them, and what goes over the list.
REGISTRY = {"base", "registry", "running", "check", "code", "estimate", "params", "wiring"}
#: What planning may use besides the standard library and itself; modules of documents read and write files with a schema.
OF_PLANNING = {
    "numpy",
    "scipy",
    "numba",
    "ortools",
    "edgeplan.errors",
    "edgeplan.support.compiled",
    "edgeplan.support.lazy",
    "edgeplan.support.topology",
}
OF_DOCUMENTS = {"pydantic", "edgeplan.support.files"}
DOCUMENTS = {
    f"edgeplan.planning.{name}"
    for name in ("document", "memory.document", "partition.document", "partition.costs", "partition.plan")
}


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(Path(__file__).parents[2] / "workflow/edgeplan")


def _part(module: str) -> tuple[str, str]:
    """Folder or module below the package, and what comes next: ("chapters", "prediction"), ("graph", "onnx")."""
    _, first, second, *_ = [*module.split("."), "", ""]
    return first, second


def test_each_package_of_the_foundation_imports_those_before_it_alone(tree: Tree) -> None:
    assert not arrows_up(tree), "FLOORS in workflow/scripts/structure.py is the order"


def test_a_chapter_imports_no_other_chapter_and_nothing_above(tree: Tree) -> None:
    wrong = set()
    for module in tree.paths:
        folder, chapter = _part(module)
        if folder != "chapters" or chapter in REGISTRY or not chapter:
            continue
        for name in tree.imports(module):
            if name.split(".")[0] != "edgeplan":
                continue
            other, part = _part(name)
            if other == "chapters" and part in {chapter, "base"}:
                continue
            if other not in (*FLOORS, ""):
                wrong.add(f"{module} imports {name}")
    assert not wrong


def test_planning_imports_numerics_and_itself_alone(tree: Tree) -> None:
    wrong = set()
    for module in tree.paths:
        planner = ".planners." in module
        if _part(module)[0] != "planning" and not planner:
            continue
        own = ("edgeplan.planning", module.rpartition(".")[0])
        allowed = OF_PLANNING | (OF_DOCUMENTS if module in DOCUMENTS else set())
        for name in tree.imports(module):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or name in allowed or top in allowed:
                continue
            if not name.startswith(own):
                wrong.add(f"{module} imports {name}")
    assert not wrong


def test_no_module_imports_itself_through_others(tree: Tree) -> None:
    assert not circles(tree)
    assert not circles(tree, of_packages=True)


def test_every_folder_and_module_of_the_package_has_its_floor(tree: Tree) -> None:
    assert {_part(module)[0] for module in tree.paths} - {*FLOORS, ""} == {
        "__main__",
        "api",
        "chapters",
        "cli",
        "front",
        "report",
        "checking",
        "runs",
    }
