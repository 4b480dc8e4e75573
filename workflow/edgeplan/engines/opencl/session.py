"""Runs a model on an OpenCL device alone."""

from __future__ import annotations

from edgeplan.engines.base import EngineSettings
from edgeplan.engines.opencl.dispatching import DispatchingEngine
from edgeplan.opencl.platforms import OpenclOptions, find_device, pyopencl
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.processors.opencl import OpenclProcessor


class Opencl(DispatchingEngine):
    """This engine is an OpenCL device; the options are those of `OpenclOptions`."""

    name = "opencl"

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._options = OpenclOptions.of(settings.options)
        find_device(self._options)

    @classmethod
    def version(cls) -> str:
        return cls.version_for(EngineSettings())

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:
        driver = "_".join(str(find_device(OpenclOptions.of(settings.options)).driver_version).split())
        return f"{pyopencl().VERSION_TEXT}+{driver}"

    def open(self, block: int, *, profiling: bool) -> DispatchingProcessor:
        return OpenclProcessor(self._options, block, profiling=profiling)
