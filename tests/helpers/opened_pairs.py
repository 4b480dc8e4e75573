"""A pair of a test's workspace, opened, or the test is skipped where no OpenCL is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError


@contextlib.contextmanager
def opened_here(workspace: Path) -> Iterator[Opened]:
    """Open `pair-pocl` of a workspace, as for measuring."""
    try:
        with opened(load_pair(workspace / "config/pairs/pair-pocl.yaml"), profiling=True) as found:
            yield found
    except DeviceError as error:
        if "no OpenCL platform" in error.what:
            pytest.skip(error.what)
        raise
