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
                *files_of("measurement/process", "background", "memory_group", "read_ahead", "stock_memory", "stock"),
                *files_of("engines", "onednn/mapped", "onnxruntime/offline", "openvino/mapped"),
                "support/memory_counters.py",
                *files_of("chapters/memory", "bench", "frugal", "layouts", "measuring", "phonelike", "plan", "same_memory"),
                *files_of("chapters/memory", "single_layers", "studies", "turns"),
                "planning/memory",
            ),
            earlier=("memory/2",),
        ),
    }
)
