"""Names of what is made here: a model may have given any name to a tensor of its own."""

from __future__ import annotations

from collections.abc import Container
from itertools import chain, count


def free(wanted: str, taken: Container[str]) -> str:
    """Return a name that nothing has: the one wanted, else with the first number behind it that makes it one."""
    return next(name for name in chain([wanted], (f"{wanted}~{k}" for k in count(1))) if name not in taken)
