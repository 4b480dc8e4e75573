"""This package starts ncnn cold as a stock engine."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_START, _CONVERTED = "edgeplan.engines.ncnn.start", "edgeplan.engines.ncnn.cold:converted"
#: FlexNN's NCNN-Direct: what computes convolutions as products of matrices needs memory besides.
_DIRECT = {"without": ["winograd_convolution", "sgemm_convolution"]}
#: Variables that keep Vulkan drivers from finding shaders of earlier processes: NVIDIA's, and Mesa's.
_UNCACHED = {"__GL_SHADER_DISK_CACHE": "0", "MESA_SHADER_CACHE_DISABLE": "true"}
ENGINE = Description(
    "ncnn",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType(
        {
            "ncnn": Setting(_START, "ncnn", "ncnn", _CONVERTED),
            "ncnn-direct": Setting(_START, "ncnn", "ncnn, direct", _CONVERTED, _DIRECT),
            "ncnn-vulkan": Setting(
                _START, "ncnn", "ncnn, Vulkan", _CONVERTED, {"gpu": True, "environment": _UNCACHED}, starts_once=True
            ),
            "ncnn-vulkan-cached": Setting(
                _START, "ncnn", "ncnn, Vulkan, shaders kept", _CONVERTED, {"gpu": True}, stores_work=True, starts_once=True
            ),
        }
    ),
    protocols={"cold": "cold-ncnn/2"},
    earlier={"cold": ("eb572db824d755cd",)},
)
