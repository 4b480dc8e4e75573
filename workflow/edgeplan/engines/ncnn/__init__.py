"""This package starts ncnn cold as a stock engine.

Modules:

* `cold`: Starts ncnn cold on the CPU, f32: the engine that NNV12 extends.
* `convert`: Converts ONNX to ncnn by pnnx, ncnn's own converter: a program, run in a folder of its
  own.
* `vulkan_cold`: Starts ncnn cold on a GPU through Vulkan, f32: the engine that NNV12 is compared
  with there.
"""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

ENGINE = Description(
    "ncnn",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType(
        {
            "ncnn": Setting("edgeplan.engines.ncnn.cold:Ncnn", "ncnn", "ncnn"),
            "ncnn-direct": Setting("edgeplan.engines.ncnn.cold:NcnnDirect", "ncnn", "ncnn, direct"),
            "ncnn-vulkan": Setting("edgeplan.engines.ncnn.vulkan_cold:NcnnVulkan", "ncnn", "ncnn, Vulkan"),
            "ncnn-vulkan-cached": Setting(
                "edgeplan.engines.ncnn.vulkan_cold:NcnnVulkanCached", "ncnn", "ncnn, Vulkan, shaders kept", stores_work=True
            ),
        }
    ),
)
