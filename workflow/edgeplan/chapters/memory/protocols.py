"""Names of the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import NATIVE, Protocol, files_of

#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "memory": Protocol(
            "memory/4",  # since 4 sessions are native
            (
                *files_of(
                    "runtime/streaming", "build", "calls", "halves", "program", "rounding", "rows", "schedules", "workloads"
                ),
                "runtime/memory_program.py",
                *(f"{NATIVE}/{part}" for part in ("library", "program", "session", "measure")),
                *files_of("runtime", "ranges", "bands"),
                *(f"{NATIVE}/loops/{name}.cpp" for name in ("partner", "widening")),
                *files_of("profiling", "streaming"),
                *files_of("measurement/process", "background", "memory_group", "own_files", "read_ahead", "streaming"),
                "engines/onednn/mapped.py",
                "support/memory_counters.py",
                *files_of(
                    "chapters/memory",
                    "bench",
                    "contained",
                    "costed",
                    "frugal",
                    "measuring",
                    "phonelike",
                ),
                *files_of("chapters/memory", "plan", "proof", "same_memory", "single_layers", "studies", "turns"),
                "planning/memory",
            ),
            earlier=("memory/2",),
        ),
        # since 2 a stock engine is started by a file that imports it alone
        "memory_stock": Protocol(
            "memory-stock/2",
            (
                *files_of("measurement/process", "program", "stock", "counters", "memory_group", "inputs"),
                *(
                    f"engines/{name}/{file}.py"
                    for name in ("onnxruntime", "openvino", "ncnn", "litert")
                    for file in ("cold", "start")
                ),
            ),
        ),
    }
)
