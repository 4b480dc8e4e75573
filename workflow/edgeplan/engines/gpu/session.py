"""Runs a model on a GPU alone, or on a slice of one: through OpenCL, which other devices have, too, or through CUDA."""

from __future__ import annotations

from edgeplan.cuda.driver import Driver, gpu_name
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.gpu.cuda import CudaOptions, CudaProcessor
from edgeplan.engines.gpu.dispatching import DispatchingEngine
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.opencl.platforms import OpenclOptions, find_device, pyopencl


class Opencl(DispatchingEngine):
    """This engine is an OpenCL device; the options are those of `OpenclOptions`."""

    name = "opencl"

    processor = OpenclProcessor

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        find_device(OpenclOptions.of(settings.options))

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:
        driver = "_".join(str(find_device(OpenclOptions.of(settings.options)).driver_version).split())
        return f"{pyopencl().VERSION_TEXT}+{driver}"


class Cuda(DispatchingEngine):
    """This engine is an NVIDIA GPU; the options are those of `CudaOptions`."""

    name = "cuda"

    processor = CudaProcessor

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        CudaOptions.of(settings.options)
        Driver()

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:
        """Return the versions of driver and compiler, and the GPU's name: rows of one card are none of another's."""
        driver, options = Driver(), CudaOptions.of(settings.options)
        version = int(driver.call("cuDriverGetVersion"))
        name = gpu_name(driver, driver.call("cuDeviceGet", options.device))
        return f"{version // 1000}.{version % 1000 // 10}+nvrtc.{driver.compiler}+{'_'.join(name.split())}"
