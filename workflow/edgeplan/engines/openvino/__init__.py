"""Runs models by OpenVINO: measured by node, and started cold.

Modules:

* `cold`: Starts OpenVINO cold on the CPU, held to f32 (its default on this hardware is bf16), with
  and without its model cache.
* `mapped`: OpenVINO with its weights mapped: its own format of models, f32, whose file of weights
  stays pages of the page cache.
* `nodes`: Tells which operators of the original graph OpenVINO runs in each node of its runtime
  model.
* `session`: Runs models by OpenVINO on the CPU, held to f32 (its default on this hardware is bf16).
"""

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
            "openvino-cached": Setting(f"{_COLD}:OpenVinoCached", "openvino", "OpenVINO, model cache", stores_work=True),
            "openvino-mapped": Setting("edgeplan.engines.openvino.mapped:OpenVinoMapped", "openvino", "OpenVINO, mapped"),
        }
    ),
    wheels=("openvino",),
)
