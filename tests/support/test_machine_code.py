"""Images of machine code: kept, mapped without a compiler, compiled again where damaged or of another processor."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import llvmlite.binding as llvm
import pytest

import edgeplan
from edgeplan.errors import DeviceError
from edgeplan.runtime import kernels
from edgeplan.support import machine_code, object_code

LANE = "processes"  # see tests/conftest.py

#: Maps one kernel and runs it; what the process takes more for it (KiB), and whether a compiler was loaded.
_USE = """
import ctypes, logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
from edgeplan.graph import blocks
from edgeplan.runtime import kernels

def resident():
    return sum(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Rss:"))

libm = ctypes.CDLL("libm.so.6")
resident()
before = resident()
erf = kernels.function("erf_float32")
numbers = blocks.element_wise((4,), [((4,), "float32")], "float32")
block = (ctypes.c_int64 * len(numbers))(*numbers)
x, y = (ctypes.c_float * 4)(0, 0.5, 1, 2), (ctypes.c_float * 4)()
places = (ctypes.c_int64 * 2)(ctypes.addressof(x), ctypes.addressof(y))
assert erf(ctypes.addressof(block), 0, 2, ctypes.addressof(places)) == 0
assert [round(value, 4) for value in y] == [0, 0.5205, 0.8427, 0.9953]
print(resident() - before, any(name in sys.modules for name in ("numba", "llvmlite", "numpy")))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The folder of a user who has compiled nothing yet."""
    return tmp_path / "edgeplan" / "compiled"


def _used(cache: Path, before: str = "") -> tuple[int, bool, str]:
    environment = os.environ | {"XDG_CACHE_HOME": str(cache.parents[1]), "PYTHONPATH": str(Path(edgeplan.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", before + _USE], env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    kib, loaded = done.stdout.split()
    return int(kib), loaded == "True", done.stderr


def test_a_compiled_kernel_takes_less_than_a_mebibyte_and_no_compiler(cache: Path) -> None:
    _, loaded, said = _used(cache)
    assert "compiling for this processor, once" in said
    assert not loaded, "it was compiled by another process"
    kib, loaded, said = _used(cache)
    assert (loaded, said) == (False, "")
    assert kib < 1024


def test_a_damaged_file_is_compiled_again(cache: Path) -> None:
    _used(cache)
    (path,) = cache.glob("*.code")
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:50], b"", whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        path.write_bytes(damaged)
        _, loaded, said = _used(cache)
        assert not loaded
        assert "compiling" in said
        assert path.read_bytes()[:8] == whole[:8]


def test_another_processor_has_files_of_its_own_and_says_that_it_compiles(cache: Path) -> None:
    _used(cache)
    other = "from edgeplan.support import machine_code\nmachine_code.processor = lambda: 'another'\n"
    _, _, said = _used(cache, other)
    assert said.count("compiling for this processor") == 1
    assert len(list(cache.glob("*.code"))) == 2


def test_what_is_no_kernel_is_named() -> None:
    with pytest.raises(DeviceError, match="nonsense"):
        kernels.load(["nonsense"])


# Linking

_TEXT = """
target triple = "x86_64-unknown-linux-gnu"
@counted = internal global i64 40
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
@out = common global i64 0
declare double @pow(double, double)
declare i64 @labs(i64)
define internal i64 @one() { ret i64 1 }
define internal i64 @two() { ret i64 2 }
define i64 @entry.count() {
  %before = load i64, ptr @counted
  %after = add i64 %before, 1
  store i64 %after, ptr @counted
  store i64 %after, ptr @out
  %kept = load i64, ptr @out
  ret i64 %kept
}
define i64 @entry.pick(i64 %which) {
  %place = getelementptr ptr, ptr @table, i64 %which
  %function = load ptr, ptr %place
  %found = call i64 %function()
  ret i64 %found
}
define double @entry.power(double %a, double %b) {
  %found = call double @pow(double %a, double %b)
  ret double %found
}
define i64 @entry.absolute(i64 %a) {
  %found = call i64 @labs(i64 %a)
  ret i64 %found
}
"""


def _object(text: str, triple: str = "x86_64-unknown-linux-gnu", **given: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(**({"reloc": "pic", "codemodel": "small"} | given))
    return bytes(machine.emit_object(llvm.parse_assembly(text.replace("x86_64-unknown-linux-gnu", triple))))


def test_code_constants_variables_and_functions_of_the_c_libraries_are_reached() -> None:
    at = machine_code._map("some", object_code.linked(_object(_TEXT)))
    word = ctypes.c_int64
    count, pick = ctypes.CFUNCTYPE(word)(at["count"]), ctypes.CFUNCTYPE(word, word)(at["pick"])
    assert [count(), count()] == [41, 42]
    assert [pick(0), pick(1)] == [1, 2]
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(at["power"])(2, 10) == 1024
    assert ctypes.CFUNCTYPE(word, word)(at["absolute"])(-7) == 7
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if begin <= at["count"] < end:
            assert line.split()[1].startswith("r-x")


def test_objects_of_another_processor_are_refused() -> None:
    with pytest.raises(DeviceError, match="machine 183"):
        object_code.linked(_object(_TEXT, "aarch64-unknown-linux-gnu"))


def test_an_unknown_reference_is_refused() -> None:
    with pytest.raises(DeviceError, match="references of kind"):
        object_code.linked(_object(_TEXT, reloc="static"))
    local = "@own = thread_local global i64 0\ndefine i64 @entry.own() {\n %a = load i64, ptr @own\n ret i64 %a\n}"
    with pytest.raises(DeviceError, match="references of kind"):
        object_code.linked(_object('target triple = "x86_64-unknown-linux-gnu"\n' + local))


def test_a_function_that_the_c_libraries_lack_is_named() -> None:
    image = object_code.linked(_object(_TEXT.replace("@labs", "@not_there_at_all")))
    with pytest.raises(DeviceError, match="have no not_there_at_all"):
        machine_code._map("some", image)
