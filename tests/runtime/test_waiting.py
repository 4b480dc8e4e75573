"""Threads that wait for each other do not keep a core that others could use: OpenMP's, and the lanes of a start."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import edgeplan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.native.entries import Context
from edgeplan.runtime.native.words import FLOATS, INTEGERS, Store, Tape
from edgeplan.runtime.objects import library_places
from edgeplan.runtime.waiting import SPINS, bounded_waits

pytestmark = pytest.mark.usefixtures("dnnl")
PACKAGE = Path(edgeplan.__file__).parent
CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
WAIT_SECONDS, LEAST_NAPS = 0.1, 2
#: Imports modules, loads the library, and has libgomp tell on stderr what it goes by.
TELL = """
import ctypes, importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    there = [line for line in open("/proc/self/maps") if "libgomp.so.1" in line]
    assert not there, f"{name} loads libgomp before the runtime does: {there[0]}"
before = dict(os.environ)
from edgeplan.runtime.dnnl import Dnnl
Dnnl()
assert dict(os.environ) == before
ctypes.CDLL("libgomp.so.1").omp_display_env(1)
"""


def loading_modules() -> list[str]:
    """Every module of the package that loads the library."""
    found = [p for p in sorted(PACKAGE.rglob("*.py")) if re.search(r"\b(Dnnl|open_library)\(\)", p.read_text())]
    return [".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts) for p in found]


def told(*modules: str, **variables: str) -> str:
    """What libgomp says of its spinning in a process that imports some modules first."""
    inherited = {name: value for name, value in os.environ.items() if name not in CHOICES}
    done = subprocess.run(
        [sys.executable, "-c", TELL, *modules], capture_output=True, text=True, check=False, env=inherited | variables
    )
    if "omp_display_env" in done.stderr and "undefined symbol" in done.stderr:
        pytest.skip("this libgomp does not tell what it goes by")
    assert done.returncode == 0, done.stderr
    found = re.search(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert found, done.stderr
    return found[1]


def test_whatever_loads_the_library_bounds_its_waits() -> None:
    modules = loading_modules()
    assert {
        "edgeplan.runtime.cold_executor",
        "edgeplan.engines.onednn.start",
        "edgeplan.measurement.process.first_execution",
    } <= set(modules)
    assert told("edgeplan.cli", "edgeplan.measurement.process.worker", *modules) == str(SPINS)


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


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CHOICES:
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    seen: list[str] = []

    def fail() -> None:
        with bounded_waits():
            seen.append(os.environ["GOMP_SPINCOUNT"])
            raise OSError("no library")

    with pytest.raises(OSError, match="no library"):
        fail()
    assert seen == [str(SPINS)]
    assert dict(os.environ) == before


def naps(wait: Callable[[], object], end: Callable[[], object]) -> int:
    """How often a thread sleeps while it waits for another one that comes after a while; to yield the core does not count."""
    other = threading.Timer(WAIT_SECONDS, end)
    other.start()
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    wait()
    found = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before
    other.join()
    return found


@pytest.fixture
def waited(dnnl: Dnnl) -> tuple[Context, np.ndarray]:
    """One step without weights that nobody has prepared, and one object that another thread is at."""
    none = np.zeros(0, np.int64)
    record = np.zeros(words.HEAD, np.int64)
    record[words.HEAD_SOURCE] = words.NO_WEIGHTS
    values, roles, floats = (np.zeros((0, n), t) for n, t in ((INTEGERS, np.int64), (INTEGERS, np.int8), (FLOATS, np.float32)))
    tape = Tape(none, none, none, roles, values, floats, np.zeros(2, np.int64), record, np.zeros(1, np.int64))
    store = Store(*(np.zeros(words.ITEM_WORDS, np.int64) for _ in Store._fields))
    store.states[0] = 1
    return Context(tape, store, library_places(dnnl)), np.zeros(words.OWN_WORDS, np.int64)


def test_a_wait_for_a_step_leaves_the_core(waited: tuple[Context, np.ndarray]) -> None:
    context, _ = waited
    wait = partial(entries.await_all, context)
    assert naps(wait, lambda: entries.publish(context, 0, 1)) > LEAST_NAPS


def test_an_execution_that_waits_for_a_step_leaves_the_core(waited: tuple[Context, np.ndarray]) -> None:
    context, own = waited
    none, times, block = np.zeros(0, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)  # a step of no calls
    wait = partial(entries.advance, context, own, none, times, 0, 1, narrow=1, stealing=True, patience_ns=10**12)
    assert naps(wait, lambda: entries.publish(context, 0, block.ctypes.data)) > LEAST_NAPS


def test_a_wait_for_an_object_leaves_the_core(waited: tuple[Context, np.ndarray]) -> None:
    context, own = waited
    made = 2

    def end() -> None:
        context.store.states[0] = made

    assert naps(lambda: entries.ensure(context, own, 0), end) > LEAST_NAPS
