"""`edgeplan compile` compiles all; nothing is compiled for a command that refuses, nor said to be."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import edgeplan
from edgeplan.cli import ahead

LANE = "processes"  # see tests/conftest.py

_PACKAGE = Path(edgeplan.__file__).parent
#: What the commands that plan and run do with compiled code, on inputs that need all of it.
_USES = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
import numpy as np
from edgeplan.planning.layout.buffers import buffers
from edgeplan.planning.memory import planner
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import Reader, Workload
from edgeplan.runtime.native import calls, entries
from edgeplan.runtime.memory import checksum
from edgeplan.chapters.cold_start.planners.streamed import streamed
from edgeplan.planning.profile import Disk
from cold_start_instances import realistic

chance = np.random.default_rng(1)
tensors = buffers(np.arange(8), np.arange(8) + 2, chance.integers(1, 9, 8))
work = Workload(np.ones(9), chance.integers(0, 9, 9), tensors)
least = planner.least(work)
for mode in Mode:
    planner.plan(work, Reader(10.0), least.height, mode)
checksum(np.zeros(8192, np.uint8))
streamed(realistic(12, 1), Disk(500.0, 0.1))
entries.load()
calls.load()
entries.code_memory()
"""
#: One process for all: most of each one's time would go into imports.
_REFUSED = """
import sys
from edgeplan.cli import main

for command in sys.argv[1:]:
    sys.argv = ["edgeplan", *command.split()]
    try:
        main()
    except SystemExit as ended:
        print(f"{command}: {'refused' if ended.code else 'done'}")
"""
_COMMANDS = (
    "plan cold-start none.onnx -o plan",
    "plan cold-start none.onnx -o plan --costs predicted",
    "plan memory none.onnx -b 50% -o plan",
    "plan memory none.onnx -b 0 -o plan",
    "plan partition none.onnx --pair pair-pocl -o plan",
    "run none",
    "run none --cold",
    "measure none.onnx -d cpu-onednn",
    "predict none.onnx -d cpu-onednn",
)


def _ran(arguments: list[str], cache: str | None = None) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join((str(_PACKAGE.parent), str(Path(__file__).parents[1] / "helpers")))
    environment = os.environ | {"PYTHONPATH": paths} | ({"XDG_CACHE_HOME": cache} if cache else {})
    return subprocess.run(
        [sys.executable, *arguments], env=environment, text=True, capture_output=True, check=False, timeout=300
    )


def _compiling() -> set[str]:
    """Modules of the package that have something compiled."""
    found = set()
    for path in _PACKAGE.rglob("*.py"):
        names = (
            node.module for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
        )
        if "edgeplan.support.compiled" in names:
            found.add(".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"))
    return found


def test_all_modules_that_compile_are_known() -> None:
    done = {*ahead.MODULES}
    for name in done:
        __import__(name)
    left = {name for name in _compiling() if name not in done and name.rpartition(".")[0] != "edgeplan.runtime.native"}
    assert not left


def test_after_it_nothing_is_compiled() -> None:
    for load in ahead.loads():
        load()
    ended = _ran(["-c", _USES])
    assert ended.returncode == 0, ended.stderr
    assert "compiling" not in ended.stderr


def test_a_refusal_compiles_nothing(tmp_path: Path) -> None:
    ended = _ran(["-c", _REFUSED, *_COMMANDS], str(tmp_path))
    assert ended.stdout.split("\n")[:-1] == [f"{command}: refused" for command in _COMMANDS], ended.stderr
    assert ended.stderr.count("error: ") == len(_COMMANDS)
    assert "compiling" not in ended.stderr
    assert not [*tmp_path.rglob("*.nbi"), *tmp_path.rglob("*.code")]
