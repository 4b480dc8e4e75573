"""Runs models by OpenVINO: measured by node, and started cold."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_START, _SESSION = "edgeplan.engines.openvino.start", "edgeplan.engines.openvino.session"
ENGINE = Description(
    "openvino",
    "pip install 'edgeplan[openvino]'",
    f"{_SESSION}:OpenVino",
    MappingProxyType(
        {
            "openvino": Setting(_START, "openvino", "OpenVINO"),
            "openvino-mapped": Setting(
                _START,
                "openvino",
                "OpenVINO, mapped",
                f"{_SESSION}:mapped",
                {"config": {"ENABLE_MMAP": True}},
            ),
        }
    ),
    wheels=("openvino",),
    protocols={"measure": "openvino/2", "mapping": "260d8671", "cold": "cold-openvino/2"},
    earlier={"measure": ("8c2223949c86d63f",), "cold": ("c74e47ce02c58d0c",)},
)
