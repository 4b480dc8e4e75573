"""Images of machine code: linked, and mapped without a compiler."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from edgeplan.errors import DeviceError
from edgeplan.support import machine_code, object_code

LANE = "processes"  # see tests/conftest.py

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
