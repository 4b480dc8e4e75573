"""Figures of the package's structure stay within bars, and count what they say."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "workflow/scripts"))

from structure import arrows_up, circles, code_lines, figures, homonyms
from walks import Tree, walk

LANE = "texts"  # see tests/conftest.py

#: The most that each may be; `make structure` prints what they are.
BARS = {
    "code lines of workflow": 63_000,
    "code lines of tests": 35_900,
    "arrows up": 0,
    "circles of modules": 0,
    "circles of packages": 0,
    "public homonyms": 5,
    "imports inside functions": 54,
    "walk, cold start: stays": 48,
    "walk, memory: stays": 43,
    "walk, pair: stays": 41,
}
MODULES = {
    "low/__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from edgeplan.low.files import read
        """,
    "low/files.py": """
        import json
        from pathlib import Path
        from edgeplan.high.plan import Plan
        def read(path: Path) -> Plan:
            # not code
            return Plan(json.loads(_bytes(path)))
        def _bytes(path: Path) -> bytes:
            return path.read_bytes()
        """,
    "high/__init__.py": "",
    "high/plan.py": """
        from pathlib import Path
        class Plan:
            'Not code.'
            def __init__(self, values: dict) -> None:
                self.values, self.size = values, len(values)
        class Loop:
            def __init__(self, plan: Plan, threads: int) -> None:
                self.plan = plan
                _sizes(plan.size)
            def run(self) -> None:
                self._all()
            def _all(self) -> None:
                _native(self.plan)
        def _sizes(size: int) -> None: ...
        def _native(plan: Plan) -> None: ...
        """,
    "high/other.py": """
        class Plan: ...
        class _Loop: ...
        """,
    "command.py": """
        from pathlib import Path
        def run(folder: Path) -> None:
            from edgeplan.low import read
            from edgeplan.high.plan import Loop
            plan = read(folder / "plan.json")
            loop = Loop(plan, 1)
            print(folder)
            loop.run()
        """,
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in {"__init__.py": "", **MODULES}.items():
        path = tmp_path / "edgeplan" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return tmp_path / "edgeplan"


@pytest.fixture(scope="module")
def found() -> dict[str, int]:
    return figures()


@pytest.mark.parametrize("figure", BARS)
def test_a_figure_of_the_structure_stays_within_its_bar(figure: str, found: dict[str, int]) -> None:
    assert found[figure] <= BARS[figure], "make structure prints all; lower a bar where it can be"


def test_a_walk_counts_stays_of_the_folder_and_of_what_is_read_from_it(package: Path) -> None:
    found = walk(Tree(package), "edgeplan.command.run", "folder")
    low, high = "edgeplan.low.files", "edgeplan.high.plan"
    assert found.stays == ["edgeplan.command", low, high]
    read = [f"{low}.read", f"{low}._bytes", f"{high}.Plan.__init__"]
    ran = [f"{high}.Loop.{name}" for name in ("__init__", "run", "_all")]
    assert found.functions == ["edgeplan.command.run", *read, *ran, f"{high}._native"]
    without = walk(Tree(package), "edgeplan.command.run", "folder", [high])
    assert without.figures() == {"stays": 2, "files": 2, "returns": 0, "functions": 3}


def test_arrows_circles_homonyms_and_late_imports_are_counted(package: Path) -> None:
    tree = Tree(package)
    assert arrows_up(tree, ["low", "high"]) == ["edgeplan.low.files imports edgeplan.high.plan"]
    assert not arrows_up(tree, ["high", "low"])
    assert not circles(tree)
    (package / "high/other.py").write_text("def f():\n    from edgeplan.low import files\n")
    assert circles(Tree(package), of_packages=True) == [["high", "low"]]
    assert homonyms(tree) == {"Plan": ["edgeplan.high.other", "edgeplan.high.plan"]}
    assert len(tree.inside_functions()) == 2


def test_lines_of_code_are_no_blanks_comments_docstrings_and_imports(package: Path) -> None:
    assert code_lines(package / "low/files.py") == 4
    assert code_lines(package / "high/plan.py") == 13
