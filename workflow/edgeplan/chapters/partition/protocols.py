"""Names of the chapter's measuring protocols: see `edgeplan.support.protocols`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.support.protocols import NATIVE, Protocol, files_of

#: By what is measured.
PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        # since 2 anchors in chains say how fast the machine was, and plans of EOP's models run in turn, one inference of each
        "partition": Protocol(
            "partition/3",
            (
                *files_of("runtime/partitioned", "build", "handshake", "lanes", "program", "session"),
                *files_of("runtime/streaming", "build", "calls"),
                "engines/pair.py",
                *files_of("processors", "onednn", "opencl"),
                *files_of(
                    "opencl", "building", "dispatch", "launch", "post_ops", "processor", "transforms", "convolutions", "linear"
                ),
                *files_of("opencl", "copies", "pointwise", "windows", "spaces", "tiles"),
                "runtime/ranges.py",
                f"{NATIVE}/loops/partner.cpp",
                *files_of(
                    "chapters/partition/measuring",
                    "chains",
                    "samples",
                    "splits",
                    "models",
                ),
                *files_of("chapters/partition", "layers", "costs", "choosing"),
                *files_of("planning/partition", "planner"),
                "workloads/registry.py",
            ),
            earlier=("partition/2",),
        ),
        # plans by a model's own sweep, and all ways to run it on fresh runs; since 2 what is moved is part of the costs, since
        # 3 ways near to each other are opened twice before one is chosen, since 4 no GPU notes when its kernels run, and since
        # 5 the host's threads stay awake until its next step
        "partition_checked": Protocol(
            "partition-checked/5",
            (
                *files_of("runtime/partitioned", "build", "crossing", "handshake", "lanes", "program", "sections", "session"),
                *files_of("runtime/streaming", "build", "calls"),
                "engines/pair.py",
                *files_of("processors", "onednn", "opencl", "cuda"),
                "opencl",
                "cuda",
                *files_of("runtime", "ranges", "bands"),
                f"{NATIVE}/loops/partner.cpp",
                *files_of("chapters/partition/checked", "own_sweep", "planning", "worker"),
                *files_of("chapters/partition/checked", "fastest", "opened_plan"),
                *files_of("chapters/partition", "costs", "stages/partition_checked"),
                *files_of("planning/partition", "planner"),
                "workloads/registry.py",
            ),
            earlier=("partition-checked/4", "partition-checked/3", "partition-checked/2"),
        ),
        "eop": Protocol(
            "eop/3",
            (
                *files_of("runtime/partitioned", "build", "handshake", "lanes", "program", "sections", "session"),
                *files_of("runtime/streaming", "build", "calls"),
                *files_of("processors", "onednn", "opencl"),
                *files_of(
                    "opencl", "batches", "building", "dispatch", "launch", "post_ops", "processor", "products", "transforms"
                ),
                *files_of("opencl", "convolutions", "copies", "linear", "pointwise", "windows", "spaces", "tiles"),
                *files_of("runtime", "ranges", "bands"),
                f"{NATIVE}/loops/partner.cpp",
                *files_of("chapters/partition/eop", "costs", "operators", "sweeps", "variants", "ways"),
                *files_of("chapters/partition/stages", "partition_eop"),
                *files_of("workloads", "registry", "recurrent", "transformers"),
                "graph/simplify.py",
                "planning/partition",
            ),
            earlier=("eop/2",),
        ),
    }
)
