"""What runs plans starts with little: the library is found without processes, and what only planning needs is left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeplan.runtime import library
from edgeplan.runtime.installed import NAMED_BY, installed_libraries

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
