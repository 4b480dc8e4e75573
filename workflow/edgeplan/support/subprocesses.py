"""Processes of the package's own modules."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import edgeplan


def environment() -> Mapping[str, str]:
    """This environment, with the package of this very process first on the path, also where it runs from a checkout."""
    package = str(Path(edgeplan.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (package, inherited) if part)}


def ending(code: int) -> str:
    """How a process ended that did not succeed, by its return code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
