"""Starts ncnn cold on a GPU through Vulkan, f32: the engine that NNV12 is compared with there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.engines.cold import Artefact, BaselineSession, UnsupportedError
from edgeplan.engines.ncnn.cold import Ncnn

#: Variables that keep Vulkan drivers from finding shaders of earlier processes: NVIDIA's, and Mesa's.
_UNCACHED = {"__GL_SHADER_DISK_CACHE": "0", "MESA_SHADER_CACHE_DISABLE": "true"}


class NcnnVulkan(Ncnn):
    """This setting computes on the first GPU; its shaders are compiled at every start, and the device is open before."""

    #: Whether the driver may keep machine code of shaders, as it does where nobody forbids it.
    cached = False

    def load_library(self, threads: int) -> None:
        if not self.cached:
            os.environ.update(_UNCACHED)  # the driver reads them when it is loaded
        super().load_library(threads)
        if not hasattr(self._ncnn, "get_gpu_count"):
            raise UnsupportedError("this ncnn was built without Vulkan")
        self._ncnn.create_gpu_instance()
        if not self._ncnn.get_gpu_count():
            raise UnsupportedError(
                "Vulkan finds no GPU: its loader (libvulkan1) or the driver's file (VK_DRIVER_FILES) is missing"
            )
        self._ncnn.get_gpu_device(0)

    def version(self) -> str:
        return f"{super().version()} on {self._ncnn.get_gpu_info(0).device_name()}"

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        made = super().prepare(model, inputs, folder, threads)
        if self.cached:
            zeros = {name: np.zeros(shape, np.float32) for name, shape in inputs.items()}
            self.open(made, self.prepare_inputs(zeros), threads).run()
        return made

    def open(self, artefact: Artefact, inputs: Mapping[str, Any], threads: int) -> BaselineSession:
        return self._opened(artefact, inputs, threads, gpu=True)


class NcnnVulkanCached(NcnnVulkan):
    """This setting finds what the driver has kept of the same shaders: an earlier process has compiled them."""

    cached = True
