"""What is compiled is found again by its content: in other folders, beside other processes, and never where it has changed."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeplan.support import compiled as kept
from edgeplan.support import machine_code

LANE = "processes"  # see tests/conftest.py

_FILES = {
    "__init__.py": "",
    "numbers.py": "SCALE = 3\nOFFSET = 5\n",
    "parts.py": """
from typing import NamedTuple
import numpy as np
from numba import types
from numba.extending import intrinsic, register_jitable
from edgeplan.support.compiled import compiled

class Two(NamedTuple):
    first: int
    second: int

TABLE = np.array([1, 2])

@compiled
def called(x):
    return x + 7

@register_jitable
def inlined(x):
    return x * 11

def bound(factor):
    @compiled
    def inner(x):
        return x * factor
    return inner

by_closure = bound(13)

@intrinsic
def generated(typing, x):
    def generate(context, builder, signature, arguments):
        return builder.add(arguments[0], context.get_constant(types.int64, 17))
    return types.int64(types.int64), generate
""",
    "outer.py": '''
from edgeplan.support.compiled import compiled
from small import numbers
from small.numbers import OFFSET
from small.parts import TABLE, Two, by_closure, called, generated, inlined

@compiled
def outer(two, x):
    """A sum of all."""
    # the result names each part
    return numbers.SCALE * two.first + OFFSET + TABLE[1] + called(x) + inlined(x) + by_closure(x) + generated(x)

if __name__ == "__main__":
    import logging
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    print(outer(Two(2, 1), 1))
''',
}
#: A change of one file, which another result shows.
_CHANGES = {
    "a function called": ("parts.py", "x + 7", "x + 8"),
    "a part inlined": ("parts.py", "x * 11", "x * 12"),
    "what a closure holds": ("parts.py", "bound(13)", "bound(14)"),
    "an intrinsic": ("parts.py", "17", "18"),
    "an array": ("parts.py", "[1, 2]", "[1, 3]"),
    "a number imported": ("numbers.py", "OFFSET = 5", "OFFSET = 6"),
    "a number of a module": ("numbers.py", "SCALE = 3", "SCALE = 4"),
    "itself": ("outer.py", "+ OFFSET", "- OFFSET"),
    "the order of fields": ("parts.py", "first: int\n    second: int", "second: int\n    first: int"),
}
_SAME = {
    "a comment": ("outer.py", "# the result", "# a result"),
    "a docstring": ("outer.py", "A sum of all", "A sum"),
    "lines": ("parts.py", "@compiled\ndef called", "\n\n@compiled\ndef called"),
    "what it does not use": ("numbers.py", "SCALE", "OTHER = 1\nSCALE"),
}


def _written(folder: Path, change: tuple[str, str, str] | None = None) -> Path:
    (folder / "small").mkdir(parents=True)
    for name, text in _FILES.items():
        if change is not None and change[0] == name:
            assert change[1] in text
            text = text.replace(change[1], change[2], 1)  # noqa: PLW2901
        (folder / "small" / name).write_text(text, encoding="utf-8")
    return folder


def _started(folder: Path, cache: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join((str(folder), str(Path(kept.__file__).parents[2])))
    environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(cache), "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, "-m", "small.outer"]
    return subprocess.Popen(command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _ran(folder: Path, cache: Path) -> tuple[int, bool]:
    """The result, and whether something was compiled for it."""
    process = _started(folder, cache)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return int(out), "compiling" in err


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test's own, in this process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine_code, "_PACKAGE", tmp_path / "package")
    once = (machine_code.places, machine_code.writable, machine_code.say_compiling, machine_code.prune)
    for function in once:
        function.cache_clear()
    yield tmp_path / "cache" / "edgeplan" / "compiled"
    for function in once:
        function.cache_clear()


def test_another_checkout_finds_what_one_compiled_and_a_change_is_compiled(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = _written(tmp_path / "a folder of one")
    assert _ran(first, cache) == (6 + 5 + 2 + 8 + 11 + 13 + 18, True)
    assert _ran(_written(tmp_path / "second", _SAME["a comment"]), cache) == (63, False)
    assert _ran(_written(tmp_path / "third", _CHANGES["the order of fields"]), cache) == (60, True)
    assert _ran(_written(tmp_path / "fourth", _CHANGES["an intrinsic"]), cache) == (64, True)
    assert _ran(first, cache) == (63, False)  # the others took nothing away


def test_processes_that_compile_at_once_leave_what_a_third_finds(tmp_path: Path) -> None:
    folder, cache = _written(tmp_path / "clone"), tmp_path / "cache"
    both = [_started(folder, cache) for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=300)
        assert (process.returncode, int(out)) == (0, 63), err
    assert _ran(folder, cache) == (63, False)
    assert not [path for path in (cache / "edgeplan" / "compiled").iterdir() if ".tmp." in path.name]


def _content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        importlib.invalidate_caches()
        outer = importlib.import_module("small.outer").outer
        parts = importlib.import_module("small.parts")
        for name in [name for name in sys.modules if name.partition(".")[0] == "small"]:
            del sys.modules[name]
        return kept.content(outer.py_func) + str(parts.Two._fields)


@pytest.mark.parametrize("what", _CHANGES)
def test_whatever_is_compiled_in_counts(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _content(_written(tmp_path / "before"), monkeypatch)
    assert _content(_written(tmp_path / "after", _CHANGES[what]), monkeypatch) != before


@pytest.mark.parametrize("what", _SAME)
def test_what_changes_no_result_does_not_count(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _content(_written(tmp_path / "before"), monkeypatch)
    assert _content(_written(tmp_path / "after", _SAME[what]), monkeypatch) == before


def _plus(x: int) -> int:
    return x + 1


def _compile() -> None:
    assert kept.compiled(_plus)(1) == 2


def test_it_says_so_once_and_only_when_something_is_compiled(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, machine_code.__name__):
        function = kept.compiled(_plus)
        assert not caplog.messages  # nothing is yet
        assert function(1) == 2
        assert function(1.0) == 2
        assert len(caplog.messages) == 1
        machine_code.say_compiling.cache_clear()
        _compile()
        assert len(caplog.messages) == 1
    assert len(list(cache.glob("*.nbi"))) == 2  # of two types


def test_a_torn_file_is_compiled_again(cache: Path) -> None:
    _compile()
    for suffix in ("nbc", "nbi"):
        (path,) = cache.glob(f"*.{suffix}")
        path.write_bytes(path.read_bytes()[:20])
        _compile()
        assert path.stat().st_size > 20


def test_what_nobody_used_for_long_is_removed_and_what_was_loaded_stays(cache: Path) -> None:
    _compile()
    long_ago = time.time() - (machine_code.UNUSED_DAYS + 1) * 86400
    for path in cache.iterdir():
        os.utime(path, (long_ago, long_ago))
    _compile()  # loads it
    used = set(cache.iterdir())
    (cache / "other.nbi").touch()
    os.utime(cache / "other.nbi", (long_ago, long_ago))
    machine_code.prune.cache_clear()
    assert kept.compiled(_plus)(1.0) == 2
    left = set(cache.iterdir())
    assert used < left
    assert cache / "other.nbi" not in left


def test_without_a_cache_folder_it_is_beside_the_sources(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    with caplog.at_level(logging.INFO, machine_code.__name__):
        _compile()
        assert len(list((tmp_path / "package" / "__pycache__" / "compiled").glob("*.nbi"))) == 1
        for function in (machine_code.places, machine_code.writable, machine_code.say_compiling):
            function.cache_clear()
        monkeypatch.setattr(machine_code, "_PACKAGE", tmp_path / "file")
        _compile()
    assert [("once" in one, "each time" in one) for one in caplog.messages] == [(True, False), (False, True)]
    assert not cache.exists()


def test_code_is_not_loaded_from_a_folder_that_others_may_write_to(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    _compile()
    assert not list(cache.iterdir())
