"""Runs models by ONNX Runtime: measured by node, and started cold; on an NVIDIA GPU measured as a black box."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.engines.description import Description, Setting

#: Of the CUDA provider. Products in f32 as on other devices; convolutions by the algorithm that cuDNN advises, not the best of
#: all that it tries.
CUDA_OPTIONS: Mapping[str, str] = MappingProxyType({"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"})
_START, _COLD = "edgeplan.engines.onnxruntime.start", "edgeplan.engines.onnxruntime.cold"
_AS_SAVED = {"level": "ORT_DISABLE_ALL"}
_NO_PACKING = "session.disable_prepacking"
_FRUGAL = {**_AS_SAVED, "entries": [_NO_PACKING], "arena": False}
_MAPPED = ["session.use_memory_mapped_ort_model", "session.use_ort_model_bytes_for_initializers"]
_setting = partial(Setting, _START, "onnxruntime")
ENGINE = Description(
    "onnxruntime",
    "pip install onnxruntime",
    "edgeplan.engines.onnxruntime.session:OnnxRuntime",
    MappingProxyType(
        {
            "onnxruntime": _setting("ONNX Runtime"),
            "onnxruntime-optimised": _setting("ONNX Runtime, optimised", f"{_COLD}:optimised", _AS_SAVED, stores_work=True),
            "onnxruntime-prepacked": _setting("ONNX Runtime, packed", f"{_COLD}:prepacked", _AS_SAVED, stores_work=True),
            "onnxruntime-mapped": _setting(
                "ONNX Runtime, mapped",
                f"{_COLD}:mapped",
                {"entries": [*_MAPPED, "session.prepack.enable_parallel"]},
                stores_work=True,
            ),
            "onnxruntime-cuda": Setting(
                _START,
                "onnxruntime-gpu",
                "ONNX Runtime, CUDA",
                f"{_COLD}:cuda",
                {"provider": dict(CUDA_OPTIONS)},
                starts_once=True,
                python="EDGEPLAN_CUDA_PYTHON",
            ),
            "onnxruntime-frugal": _setting("ONNX Runtime, frugal", f"{_COLD}:external", _FRUGAL),
            "onnxruntime-offline": _setting(
                "ONNX Runtime, optimised beforehand, mapped", f"{_COLD}:offline", _FRUGAL, stores_work=True
            ),
            "onnxruntime-mapped-frugal": _setting(
                "ONNX Runtime, its own format, mapped, frugal",
                f"{_COLD}:mapped",
                {**_FRUGAL, "entries": [*_MAPPED, _NO_PACKING]},
                stores_work=True,
            ),
        }
    ),
    wheels=("onnxruntime",),
    protocols={"measure": "onnxruntime/2", "mapping": "2e4960ae", "cold": "cold-onnxruntime/2"},
    earlier={"measure": ("a29787b50778deab",), "cold": ("d1fde67e447a6f2c",)},
)
ON_GPU = Description(
    "onnxruntime_cuda",
    # the two packages share a folder: edgeplan brings the one, which has to go before the other comes
    "pip install 'edgeplan[cuda]' && pip uninstall -y onnxruntime && "
    "pip install --force-reinstall 'onnxruntime-gpu[cuda,cudnn]'",
    "edgeplan.engines.onnxruntime.on_gpu:OnnxRuntimeOnGpu",
    architectures=("x86_64",),
    protocols={"measure": "onnxruntime-cuda/1", "mapping": "onnxruntime-cuda-nodes/1"},
)
