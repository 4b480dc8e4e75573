"""LiteRT: started cold, from models that `lowering.py` writes.

Modules:

* `cold`: LiteRT (TensorFlow Lite) on the CPU through XNNPACK, f32, with and without XNNPACK's
  weight cache.
* `context`: The context of a lowering to TFLite: the graph, its values, the file being built, and
  fusion of operators that follow.
* `file`: A writer of TFLite files: tensors, constants and operators of one f32 subgraph, by the
  schema that LiteRT ships.
* `lowering`: ONNX to TFLite: what a converter does offline, without TensorFlow. f32, static shapes,
  activations in NHWC.
* `lstm`: `LSTM` in TFLite, step by step.
* `windows`: Windowed operators in TFLite: convolutions and pools, and the padding TFLite cannot
  say.
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
