"""Compiles images ahead, in an order that lets two processes share the work."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

from edgeplan.runtime.native import entries

#: Modules that compile, each with a function `load`.
MODULES = (
    "edgeplan.runtime.native.entries",
    "edgeplan.runtime.native.calls",
    "edgeplan.runtime.streaming.halves",
    "edgeplan.chapters.cold_start.planners.descent",
    "edgeplan.planning.memory.algorithm1",
    "edgeplan.predictors.walking",
)


def loads() -> Iterator[Callable[[], object]]:
    """Yield functions that compile, or load what is kept, when they are called."""
    yield from (importlib.import_module(name).load for name in MODULES)
    yield entries.code_memory


def main() -> None:
    """Compile from the end of the list on."""
    for load in reversed([*loads()]):
        load()


if __name__ == "__main__":
    main()
