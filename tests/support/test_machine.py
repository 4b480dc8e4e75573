"""Plans are for one machine: Python, which writes them, and the native library, which runs them, tell the same of it."""

from __future__ import annotations

import ctypes

from edgeplan import native
from edgeplan.support.machine import machine_text


def test_the_native_library_tells_the_same_of_this_machine() -> None:
    assert native.function("machine", ctypes.c_char_p)().decode() == machine_text()
