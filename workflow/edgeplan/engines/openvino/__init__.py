"""Runs models by OpenVINO: measured by node, and started cold."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_START = "edgeplan.engines.openvino.start"
ENGINE = Description(
    "openvino",
    "pip install 'edgeplan[openvino]'",
    "edgeplan.engines.openvino.session:OpenVino",
    MappingProxyType(
        {
            "openvino": Setting(_START, "openvino", "OpenVINO"),
            "openvino-mapped": Setting(
                _START,
                "openvino",
                "OpenVINO, mapped",
                "edgeplan.engines.openvino.cold:mapped",
                {"config": {"ENABLE_MMAP": True}},
            ),
        }
    ),
    wheels=("openvino",),
)
