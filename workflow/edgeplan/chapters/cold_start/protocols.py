"""Names the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import Protocol, files_of

_PLANNING = files_of(
    "planning", *("bounds", "document", "dominance", "local_search", "machine", "mixed_integer", "optimal", "profile")
)
#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "cold_gpu": Protocol(
            "cold-gpu/4",  # since 3 weights go up in one go, and kernels are one program; since 4 stock engines start alone
            (
                *_PLANNING,
                *files_of("gpu_start", "files", "model", "session"),
                *files_of("chapters/cold_start", "gpu/planned", "planners/gpu", "stages/cold_gpu"),
                *files_of("measurement/process", "gpu_starts", "page_cache", "program", "child"),
                *files_of("runtime", "gpu_program", "bringing", "transform"),
                *files_of("opencl", "building", "transforms", "dispatch", "processor"),
                *files_of("processors", "opencl", "cuda"),
                "cuda/building.py",
                "opencl/sources",
            ),
            earlier=("cold-gpu/3", "cold-gpu/1"),
        ),
        "plan": Protocol("d26aa98db46a6227", (*_PLANNING, "chapters/cold_start/planners")),
    }
)
