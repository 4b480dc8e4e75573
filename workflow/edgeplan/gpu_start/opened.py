"""Opens the processor that a plan of a cold start on a GPU names, and then the plan: both are timed apart."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import DeviceError
from edgeplan.gpu_start.session import GpuSession
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.gpu_program import DeviceSpec, GpuProgram
from edgeplan.support.machine import fingerprint

if TYPE_CHECKING:
    from edgeplan.runtime.processor import Processor

#: Variables that keep drivers from finding code of earlier processes: whatever is compiled is compiled.
UNCACHED: Mapping[str, str] = MappingProxyType({"POCL_KERNEL_CACHE": "0", "CUDA_CACHE_DISABLE": "1"})


@dataclass(frozen=True, slots=True)
class OpenedGpu:
    """An opened GPU is a processor with what its opening took.

    Attributes:
        processor: opened late.
        library_ms: to load the binding, the driver and the compiler, and to look for the device.
        context_ms: to make a context and a queue.
    """

    processor: DispatchingProcessor
    library_ms: float
    context_ms: float


def open_gpu(spec: DeviceSpec, *, profiling: bool = False) -> OpenedGpu:
    """Open the processor of a device.

    Args:
        spec: the device; its vectors are those of its options where it names none.
        profiling: whether the processor is to note when kernels run.
    """
    began = time.perf_counter()
    kind = gpu_class(spec.engine)
    kind.load_library(spec.options)
    loaded = time.perf_counter()
    processor = kind.open_late(spec.options, spec.block, spec.vector, profiling=profiling)
    return OpenedGpu(processor, (loaded - began) * 1e3, (time.perf_counter() - loaded) * 1e3)


def gpu_class(engine: str) -> type[DispatchingProcessor]:
    """Return the processor of an engine that cold starts on a GPU are planned for."""
    kind: type[Processor] = face(PROCESSORS, engine, "processor", "processor")
    if not issubclass(kind, DispatchingProcessor):
        raise DeviceError(
            f"{engine} makes no kernels of its own on a device",
            where="the device file, field engine",
            next_step="take a device of the engine opencl or cuda",
        )
    return kind


def open_gpu_start(plan: PlanFolder) -> GpuSession:
    """Open a plan folder of a cold start on a GPU, with the processor that it names; that is closed with the session."""
    machine = fingerprint()
    return GpuSession(plan, open_gpu(cast("GpuProgram", plan.program).device).processor, machine)


def without_driver_caches(scratch: str = "") -> None:
    """Keep the drivers of this process from finding code of earlier ones; to be called before they are loaded.

    Args:
        scratch: an empty folder for what PoCL unpacks, where processes would else see each other's; "" for its own.
    """
    for name, value in UNCACHED.items():
        os.environ.setdefault(name, value)
    if scratch:
        os.environ["POCL_CACHE_DIR"] = scratch


def host_processors(processor: DispatchingProcessor) -> tuple[int, ...]:
    """Return the processors that this process may use and the device does not compute on; all if none is left."""
    usable = os.sched_getaffinity(0)
    return tuple(sorted(usable - set(processor.capabilities.cores) or usable))
