"""Runs models by OpenVINO: measured by node, and started cold."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_COLD = "edgeplan.engines.openvino.cold"
ENGINE = Description(
    "openvino",
    "pip install 'edgeplan[openvino]'",
    "edgeplan.engines.openvino.session:OpenVino",
    MappingProxyType(
        {
            "openvino": Setting(f"{_COLD}:OpenVinoBaseline", "openvino", "OpenVINO"),
            "openvino-mapped": Setting("edgeplan.engines.openvino.mapped:OpenVinoMapped", "openvino", "OpenVINO, mapped"),
        }
    ),
    wheels=("openvino",),
)
