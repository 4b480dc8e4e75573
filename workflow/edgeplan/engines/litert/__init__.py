"""Starts LiteRT cold, from models that `lowering.py` writes.

Modules:

* `cold`: Starts LiteRT (TensorFlow Lite) cold on the CPU through XNNPACK, f32, with and without
  XNNPACK's weight cache.
* `context`: Keeps the context of a lowering to TFLite: the graph, its values, the file being built,
  and fusion of operators.
* `file`: Writes TFLite files: tensors, constants and operators of one f32 subgraph, by the schema
  that LiteRT ships.
* `lowering`: Converts ONNX to TFLite as a converter does offline, without TensorFlow: f32, static
  shapes, activations in NHWC.
* `lstm`: Writes an `LSTM` in TFLite, step by step.
* `windows`: Lowers windowed operators to TFLite: convolutions and pools, and the padding TFLite
  cannot say.
"""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

_COLD = "edgeplan.engines.litert.cold"
ENGINE = Description(
    "litert",
    "pip install 'edgeplan[baselines]'",
    settings=MappingProxyType(
        {
            "litert": Setting(f"{_COLD}:LiteRt", "ai-edge-litert", "LiteRT"),
            "litert-cached": Setting(f"{_COLD}:LiteRtCached", "ai-edge-litert", "LiteRT, weight cache", stores_work=True),
        }
    ),
)
