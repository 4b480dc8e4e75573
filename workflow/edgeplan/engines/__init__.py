"""This package holds inference engines, a folder each, and what they have in common.

Modules:

* `base`: This module declares the interface of inference engines; each subclasses `Engine` and is
  named in `registry.py`.
* `cold`: This module declares the interface of settings that are measured cold.
* `description`: Descriptions tell the registry of an engine before anything of it is imported.
* `litert/`: LiteRT: started cold, from models that `lowering.py` writes.
* `mapping`: From an engine's report to the original graph: which operators run in which node.
* `mnn/`: This package starts MNN cold as a stock engine.
* `ncnn/`: This package starts ncnn cold as a stock engine.
* `onednn/`: oneDNN, through the package's own runtime: measured by node, and started cold by plans.
* `onnxruntime/`: ONNX Runtime: measured by node, and started cold.
* `opencl/`: An OpenCL device is measured by itself, through the package's own kernels: the second
  processor of a pair.
* `openvino/`: OpenVINO: measured by node, and started cold.
* `pair`: A plan folder of a pair, opened: both processors, and the session that runs on them.
* `registry`: The engines edgeplan knows: its own, one folder each, and those that other packages
  bring.
"""
