"""What runs plans starts with little: the library is loaded by another thread, and what only planning needs is left out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeplan.runtime import library, preloading

_START = """
import sys
from edgeplan.runtime import preloading
preloading.begin()
loading = bool(preloading._threads)
from edgeplan.runtime.streaming import worker
dnnl = worker.Dnnl()
assert loading and not preloading._threads
assert "typing_extensions" not in sys.modules
print(dnnl.info.path)
print(*sys.modules)
"""


def test_a_start_imports_what_running_needs_alone() -> None:
    done = subprocess.run([sys.executable, "-c", _START], capture_output=True, text=True, check=True)
    path, modules = done.stdout.splitlines()
    assert path in list(preloading.wheel_libraries())
    left_out = {"dataclasses", "inspect", "tempfile", "subprocess", "hashlib", "numpy", "edgeplan.graph.ir"}
    assert not left_out & set(modules.split())


def test_no_process_looks_for_a_library_where_the_wheels_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_for: list[str] = []
    monkeypatch.setattr("ctypes.util.find_library", looked_for.append)
    assert library.open_library()[1].path == next(preloading.wheel_libraries())
    assert not looked_for
    assert len([*library._places()]) > 0
    assert looked_for == ["dnnl"]
