"""The settings that are measured cold, by name. A new one is a class and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType

from edgeplan.cold.baselines.base import Baseline
from edgeplan.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a setting lives and what it is in the tables.

    Attributes:
        module, cls: its class; imported only in the process that measures or prepares it.
        engine: the engine, by the name of its distribution.
        title: for tables.
        stores_work: whether its offline step stores work that the default repeats at every start (an optimised graph, compiled
            kernels, transformed weights); the "cached" settings of the tables.
        stock: whether it is an engine as shipped; ours is not.
    """

    module: str
    cls: str
    engine: str
    title: str
    stores_work: bool = False
    stock: bool = True

    def create(self) -> Baseline:
        """The setting's class, imported now."""
        found: type[Baseline] = getattr(import_module(self.module), self.cls)
        return found()


_ORT = "edgeplan.cold.baselines.onnxruntime"
_OWN, _ONEDNN = "edgeplan.cold.baselines.edgeplan", "onednn-cpu-gomp"
_RT = "edgeplan.cold.baselines.litert"
_OV = "edgeplan.cold.baselines.openvino"

#: setting name -> where it lives.
SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        "onnxruntime": Setting(_ORT, "OnnxRuntimeDefault", "onnxruntime", "ONNX Runtime"),
        "onnxruntime-optimised": Setting(
            _ORT, "OnnxRuntimeOptimised", "onnxruntime", "ONNX Runtime, optimised", stores_work=True
        ),
        "onnxruntime-prepacked": Setting(_ORT, "OnnxRuntimePrepacked", "onnxruntime", "ONNX Runtime, packed", stores_work=True),
        "openvino": Setting(_OV, "OpenVino", "openvino", "OpenVINO"),
        "openvino-cached": Setting(_OV, "OpenVinoCached", "openvino", "OpenVINO, model cache", stores_work=True),
        "mnn": Setting("edgeplan.cold.baselines.mnn", "Mnn", "MNN", "MNN"),
        "ncnn": Setting("edgeplan.cold.baselines.ncnn", "Ncnn", "ncnn", "ncnn"),
        "litert": Setting(_RT, "LiteRt", "ai-edge-litert", "LiteRT"),
        "litert-cached": Setting(_RT, "LiteRtCached", "ai-edge-litert", "LiteRT, weight cache", stores_work=True),
        "edgeplan": Setting(_OWN, "Edgeplan", _ONEDNN, "edgeplan", stores_work=True, stock=False),
        "edgeplan-evicted": Setting(_OWN, "Edgeplan", _ONEDNN, "edgeplan, planned for the disk", stores_work=True, stock=False),
        "edgeplan-fixed": Setting(_OWN, "EdgeplanFixed", _ONEDNN, "edgeplan, no stealing", stores_work=True, stock=False),
        "edgeplan-continuous": Setting(
            _OWN, "EdgeplanContinuous", _ONEDNN, "edgeplan, continuous mode", stores_work=True, stock=False
        ),
    }
)


def setting(name: str) -> Setting:
    """The setting of that name.

    Raises:
        DeviceError: there is no such setting.
    """
    if name not in SETTINGS:
        raise DeviceError(f"unknown setting {name!r}", next_step="known settings: " + ", ".join(SETTINGS))
    return SETTINGS[name]
