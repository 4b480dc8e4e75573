"""What the package and the native loops agree on is the same in both."""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path

from edgeplan.runtime import loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.loops import Loop, array, function_address

LANE = "fast"  # see tests/conftest.py

_HEADER = re.sub(r"//.*", "", (Path(__file__).parents[2] / "native/src/loops/loops.h").read_text())
#: Structures whose fields are rows or columns, by the prefix that these have in Python.
_ROWS = {"Places": "", "Own": "OWN_", "Head": "HEAD_", "Call": "", "Item": ""}
_COUNTS = {
    "Places": loops.PLACES,
    "Own": loops.OWN_WORDS,
    "Head": loops.HEAD,
    "Call": loops.CALL_WORDS,
    "Item": loops.ITEM_WORDS,
}


def _fields(structure: str) -> list[str]:
    """The names of a structure's fields, in order."""
    found = re.search(rf"struct {structure} {{(.*?)}};", _HEADER, re.DOTALL)
    assert found is not None
    declared = (line for line in found[1].split(";") if "(" not in line)
    return [name for line in declared for name in re.findall(r"(\w+)(?=,|$)", line.strip())]


def test_kinds_and_codes_are_the_same() -> None:
    found = dict[str, int]()
    for listed in re.findall(r"enum \w+ : [\w:]+ {(.*?)}", _HEADER):
        value = -1
        for name, given in re.findall(r"(\w+)(?: = (-?\d+))?", listed):
            value = int(given) if given else value + 1
            found[name] = value
    assert len(found) == 21
    assert found == {name: getattr(loops, name) for name in found}


def test_sizes_are_the_same() -> None:
    (listed,) = re.findall(r"constexpr Word (.*?);", _HEADER)
    found = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", listed)}
    assert found.pop("BLOCK"), "of halves, which Python does not widen"
    assert found.pop("LANES"), "of checksums, which Python does not make"
    assert found == {name: getattr(loops, name) for name in found}
    assert set(found) == {"INTEGERS", "FLOATS"}


def test_rows_and_columns_are_the_same() -> None:
    for structure, prefix in _ROWS.items():
        rows = [getattr(loops, f"{prefix}{name}".upper()) for name in _fields(structure)]
        assert rows == list(range(_COUNTS[structure]))


def test_a_team_stays_awake_until_its_next_step_and_not_beyond() -> None:
    """While the other lane takes its time the host's threads are called again and again; at the end they may sleep."""
    library, called = ctypes.CDLL(None), list[int]()
    together = ctypes.CFUNCTYPE(ctypes.c_long, *(ctypes.c_long,) * 4)(lambda *_: called.append(other[0]) or 0)
    counters, items = array(2), array(loops.ITEM_WORDS)
    own, other = counters, (ctypes.c_long * 1).from_buffer(counters, loops.WORD)
    step = (ctypes.c_long * loops.CALL_WORDS)(function_address(library.labs), 0, 0, ctypes.addressof(counters))
    items[loops.FIRST], items[loops.END] = ctypes.addressof(step), ctypes.addressof(step) + ctypes.sizeof(step)
    loop = Loop(Dnnl().info.path, 0, items)
    loop.share(ctypes.addressof(own), ctypes.addressof(other), [1], function_address(together))
    for seconds, value in ((0.005, 1), (0.01, 2)):
        threading.Timer(seconds, other.__setitem__, (0, value)).start()
    assert loop.run(0, 1, 2, 5 * 10**9) == loops.DONE
    assert len(called) > 1
    assert called.count(1) <= 1, "the last wait is no step's"
