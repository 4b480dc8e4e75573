"""This package holds inference engines, a folder each, and what they have in common.

Modules:

* `base`: This module declares the interface of inference engines; each subclasses `Engine` and is
  named in `registry.py`.
* `cold`: Declares the interface of settings that are measured cold.
* `cuda/`: An NVIDIA GPU, or a slice of one, is measured by itself through CUDA, and is the second
  processor of a pair.
* `description`: Descriptions tell the registry of an engine before anything of it is imported.
* `litert/`: Starts LiteRT cold, from models that `lowering.py` writes.
* `mapping`: Maps an engine's report to the original graph: which operators run in which node.
* `mnn/`: This package starts MNN cold as a stock engine.
* `ncnn/`: This package starts ncnn cold as a stock engine.
* `onednn/`: Runs models by oneDNN, through the package's own runtime: measured by node, and started
  cold by plans.
* `onnxruntime/`: Runs models by ONNX Runtime: measured by node, and started cold.
* `onnxruntime_cuda/`: Runs models by ONNX Runtime on an NVIDIA GPU, through its CUDA provider:
  measured as a black box.
* `opencl/`: An OpenCL device is measured by itself, through the package's own kernels: the second
  processor of a pair.
* `openvino/`: Runs models by OpenVINO: measured by node, and started cold.
* `pair`: Opens a plan folder of a pair: both processors, and the session that runs on them.
* `registry`: Registers the engines edgeplan knows: its own, one folder each, and those that other
  packages bring.
"""
