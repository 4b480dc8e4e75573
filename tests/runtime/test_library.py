"""oneDNN, and whoever loads it: where it is looked for, what a start imports, how threads that wait for each other do so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from streamed_models import streamed

import edgeplan
from edgeplan.runtime import library
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.installed import NAMED_BY, installed_libraries
from edgeplan.runtime.library import SPINS

pytestmark = pytest.mark.usefixtures("dnnl")
PACKAGE = Path(edgeplan.__file__).parent
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
#: Imports modules, loads the library, natively where a plan is named, and has libgomp tell on stderr what it goes by.
TELL = """
import ctypes, importlib, os, sys
for name in sys.argv[2:]:
    importlib.import_module(name)
    there = [line for line in open("/proc/self/maps") if "libgomp.so.1" in line]
    assert not there, f"{name} loads libgomp before the runtime does: {there[0]}"
before = dict(os.environ)
if sys.argv[1]:
    from edgeplan.runtime.native_session import open_session
    open_session(sys.argv[1])
else:
    from edgeplan.runtime.dnnl import Dnnl
    Dnnl()
assert dict(os.environ) == before
ctypes.CDLL("libgomp.so.1").omp_display_env(1)
"""


def loading_modules() -> list[str]:
    """Every module of the package that loads the library."""
    found = [p for p in sorted(PACKAGE.rglob("*.py")) if re.search(r"\b(Dnnl|open_library)\(\)", p.read_text())]
    return [".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in found]


def told(*modules: str, plan: Path | str = "", **variables: str) -> str:
    """What libgomp says of its spinning in a process that imports some modules first."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run(
        [sys.executable, "-c", TELL, str(plan), *modules],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | variables,
    )
    if "omp_display_env" in done.stderr and "undefined symbol" in done.stderr:
        pytest.skip("this libgomp does not tell what it goes by")
    assert done.returncode == 0, done.stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert found, done.stderr
    return found[1]


def test_whatever_loads_the_library_bounds_its_waits(dnnl: Dnnl, tmp_path: Path) -> None:
    modules = loading_modules()
    assert "edgeplan.chapters.memory.programs" in modules
    assert told("edgeplan.cli", "edgeplan.measurement.process.worker", *modules) == str(SPINS)
    plan = streamed(dnnl, "plain", tmp_path, 1 << 40).folder
    assert told(plan=plan) == str(SPINS)
    assert told(plan=plan, GOMP_SPINCOUNT="77") == "77"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"GOMP_SPINCOUNT": "77"}, "77"),
        ({"OMP_WAIT_POLICY": "passive"}, "0"),
        ({"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "5"}, "5"),
    ],
)
def test_who_has_chosen_how_to_wait_keeps_it(variables: dict[str, str], wanted: str) -> None:
    assert told(**variables) == wanted


_LEFT_OUT = {"dataclasses", "inspect", "tempfile", "subprocess", "hashlib", "msgspec", "numpy", "edgeplan.graph.ir"}


@pytest.mark.parametrize("module", ["edgeplan.opening", "edgeplan.measurement.process.streaming"])
def test_a_start_imports_what_running_needs_alone(module: str) -> None:
    code = f"import sys; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not _LEFT_OUT & set(done.stdout.split())


def test_no_process_looks_for_a_library_where_one_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr("ctypes.util.find_library", looked_for.append)
    assert library.open_library()[1].path == next(installed_libraries())
    assert not looked_for
    monkeypatch.setenv(NAMED_BY, "/no/such/libdnnl.so")
    assert list(library._places()) == []
    assert looked_for == ["dnnl"]
