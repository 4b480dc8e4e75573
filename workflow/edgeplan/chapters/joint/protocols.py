"""Names of the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import Protocol, files_of

#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "joint": Protocol(
            "joint/3",
            (
                *files_of("chapters/joint", "pairs", "ways"),
                *files_of("runtime/streaming", "late_kernels", "session", "start", "together", "together_plan", "worker"),
                "runtime/preloading.py",
                *files_of("measurement/process", "memory_group", "stock"),
                "planning/joint",
            ),
        ),
    }
)
