"""This package starts ncnn cold as a stock engine."""

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
