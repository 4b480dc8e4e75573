"""The engines edgeplan knows, by the name device files use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from edgeplan.devices.engines.base import Engine
from edgeplan.errors import DeviceError

#: engine name -> (module, class, how to install it); modules are imported only when used.
ENGINES: Mapping[str, tuple[str, str, str]] = MappingProxyType(
    {
        "onnxruntime": ("edgeplan.devices.engines.onnxruntime", "OnnxRuntime", "pip install onnxruntime"),
        "onednn": ("edgeplan.devices.engines.onednn", "Onednn", "pip install 'edgeplan[runtime]'"),
        "openvino": ("edgeplan.devices.engines.openvino", "OpenVino", "pip install 'edgeplan[openvino]'"),
    }
)


def engine_class(name: str) -> type[Engine]:
    """The engine of that name.

    Raises:
        DeviceError: there is no such engine, or it is not installed.
    """
    if name not in ENGINES:
        raise DeviceError(f"unknown engine {name!r}", next_step="known engines: " + ", ".join(ENGINES))
    module, cls, install = ENGINES[name]
    try:
        found: type[Engine] = getattr(import_module(module), cls)
    except ImportError as error:
        raise DeviceError(
            f"engine {name!r} is not installed: {error}", where=f"import of {module}", next_step=install
        ) from error
    return found
