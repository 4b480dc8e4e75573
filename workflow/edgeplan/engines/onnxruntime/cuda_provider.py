"""Names ONNX Runtime's CUDA provider, loads the libraries that it needs, and gives the options that all its sessions share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

PROVIDER = "CUDAExecutionProvider"
#: Products in f32 as on other devices; convolutions by the algorithm that cuDNN advises, not the best of all that it tries.
OPTIONS: Mapping[str, str] = MappingProxyType({"use_tf32": "0", "cudnn_conv_algo_search": "HEURISTIC"})


def is_there(onnxruntime: Any, provider: str = PROVIDER) -> bool:
    """Tell whether an onnxruntime has a provider; if so, load NVIDIA's libraries.

    Args:
        onnxruntime: the package.
        provider: as it names it.
    """
    if provider not in onnxruntime.get_available_providers():
        return False
    if preload := getattr(onnxruntime, "preload_dlls", None):  # since 1.21
        preload()  # of NVIDIA's packages; where they lie elsewhere, the loader's path finds them
    return True
