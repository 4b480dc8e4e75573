"""Libraries behind stand-ins are imported on first use, and told apart then where they are missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeplan.support.lazy import lazily


def test_a_library_is_imported_when_something_of_it_is_asked_for() -> None:
    code = """
import sys
from edgeplan.support.lazy import lazily
colours = lazily("colorsys")
before = "colorsys" in sys.modules
print(before, colours.rgb_to_hsv(1, 0, 0), "colorsys" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "(0.0,", "1.0,", "1)", "True"]


def test_a_missing_library_or_attribute_is_told_on_use() -> None:
    missing = lazily("no_such_library_anywhere")
    with pytest.raises(ImportError, match="no_such_library_anywhere"):
        missing.anything()
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        lazily("json").nothing_of_that_name()
