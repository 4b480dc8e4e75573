"""A process that answers on its standard output keeps it from its libraries, which print as they please."""

from __future__ import annotations

import os


def take_stdout() -> int:
    """Return a descriptor of the standard output for answers alone: whatever else is printed goes to the error output."""
    own = os.dup(1)
    os.dup2(2, 1)
    return own
