"""Names of the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import Protocol, files_of

#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "memory": Protocol(
            "memory/3",
            (
                *files_of("runtime/streaming", "again", "build", "calls", "library_pages", "memory_session"),
                *files_of("runtime/streaming", "program", "reader", "rows", "schedules", "session", "worker"),
                *files_of("runtime", "ranges", "bands", "native/partner"),
                *files_of("profiling", "streaming"),
                *files_of("measurement/process", "memory_group", "own_files", "stock_memory", "stock"),
                "support/memory_counters.py",
                *files_of("chapters/memory", "contained", "layouts", "measuring", "plan", "proof", "studies"),
                "planning/memory",
            ),
            earlier=("memory/2",),
        ),
    }
)
