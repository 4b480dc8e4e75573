"""Calls the CUDA driver and NVRTC through cuda-bindings; every error of theirs becomes one of edgeplan's.

Modules are loaded when a processor is opened: where no NVIDIA driver is, nothing of this is imported.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from edgeplan.errors import DeviceError

#: What to do about an error of the driver, by the end of its name (CUDA_ERROR_...).
_NEXT_STEPS = {
    "OUT_OF_MEMORY": "run a smaller model, or end other programs on this GPU",
    "NO_DEVICE": "check with nvidia-smi that the driver sees a GPU",
    "INVALID_DEVICE": "name a number that nvidia-smi lists, as in device: '0'",
    "DEVICE_UNAVAILABLE": "another program has the GPU for itself (exclusive mode): end it, or use another GPU",
    "LAUNCH_TIMEOUT": "a watchdog ended the kernel: run a smaller model, or a GPU without a display",
    "SYSTEM_DRIVER_MISMATCH": "install the NVIDIA driver again, so that its parts are of one version",
    "INSUFFICIENT_DRIVER": "install a newer NVIDIA driver, or an older cuda-bindings",
    "NOT_SUPPORTED": "install a newer NVIDIA driver, or leave out the option multiprocessors",
    "ECC_UNCORRECTABLE": "the GPU's memory is broken: run on another one",
    "DEVICE_NOT_LICENSED": "ask who runs this machine for a licence of its virtual GPU",
    "MPS_CONNECTION_FAILED": "start the MPS server of this machine again",
}
_AGAIN = "run again; if it stays so, look for the GPU in nvidia-smi and in the system's log"


class Driver:
    """The driver calls functions by their names, and raises what they report.

    Args:
        name: of the GPU, for messages.
    """

    def __init__(self, name: str = "the CUDA driver") -> None:
        self.name = name
        self.api, self.nvrtc = _bindings()

    def call(self, function: str, *given: Any) -> Any:
        """Call a function of the driver; return what it returns behind its error: nothing, one value, or several."""
        try:
            error, *found = getattr(self.api, function)(*given)
        except (AttributeError, RuntimeError) as lacking:  # cuda-bindings looks a function up when it is called first
            raise DeviceError(
                f"the NVIDIA driver or cuda-bindings is too old for {function}: {' '.join(str(lacking).split())[:200]}",
                where=self.name,
                next_step=_NEXT_STEPS["NOT_SUPPORTED"],
            ) from lacking
        if int(error):
            raise self._failed(function, error.name.removeprefix("CUDA_ERROR_"))
        return found[0] if len(found) == 1 else tuple(found) or None

    def done(self, stream: Any) -> bool:
        """Tell whether all that was enqueued has run."""
        (error,) = self.api.cuStreamQuery(stream)
        if int(error) == int(self.api.CUresult.CUDA_ERROR_NOT_READY):
            return False
        if int(error):
            raise self._failed("cuStreamQuery", error.name.removeprefix("CUDA_ERROR_"))
        return True

    def compiled(self, name: str, text: str, options: list[str]) -> bytes:
        """Compile a source to machine code."""
        made = self._compiler("nvrtcCreateProgram", name, text.encode(), name.encode(), 0, [], [])
        try:
            given = [option.encode() for option in options]
            (error,) = self.nvrtc.nvrtcCompileProgram(made, len(given), given)
            if int(error):
                log = bytearray(self._compiler("nvrtcGetProgramLogSize", name, made))
                self._compiler("nvrtcGetProgramLog", name, made, log)
                told = " ".join(log.decode(errors="replace").strip("\0 \n").split())[:400]
                raise DeviceError(
                    f"NVRTC cannot compile the kernel {name}: {told or error.name}",
                    where=self.name,
                    next_step="install another version of the package nvidia-cuda-nvrtc",
                )
            code = bytearray(self._compiler("nvrtcGetCUBINSize", name, made))
            self._compiler("nvrtcGetCUBIN", name, made, code)
            return bytes(code)
        finally:
            self.nvrtc.nvrtcDestroyProgram(made)

    @property
    def compiler(self) -> str:
        """Return the version of NVRTC."""
        return ".".join(map(str, self._compiler("nvrtcVersion", "the version")))

    def _compiler(self, function: str, name: str, *given: Any) -> Any:
        error, *found = getattr(self.nvrtc, function)(*given)
        if int(error):
            raise DeviceError(f"NVRTC fails in {function}: {error.name}", where=f"{name} on {self.name}", next_step=_AGAIN)
        return found[0] if len(found) == 1 else tuple(found) or None

    def _failed(self, function: str, error: str) -> DeviceError:
        return DeviceError(f"{function} reports {error}", where=self.name, next_step=_NEXT_STEPS.get(error, _AGAIN))


@cache
def _bindings() -> tuple[Any, Any]:
    """Import cuda-bindings, and initialise the driver."""
    try:
        api, nvrtc = import_module("cuda.bindings.driver"), import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise DeviceError(
            f"cuda-bindings is not installed: {error}",
            where="import of cuda.bindings",
            next_step="pip install 'edgeplan[cuda]'",
        ) from error
    try:
        (code,) = api.cuInit(0)
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise DeviceError(
            f"there is no CUDA here: {' '.join(str(error).split())[:200]}",
            where="libcuda.so.1, libnvrtc.so",
            next_step="install the NVIDIA driver, and pip install 'edgeplan[cuda]'",
        ) from error
    if int(code):
        name = code.name.removeprefix("CUDA_ERROR_")
        raise DeviceError(f"cuInit reports {name}", where="the NVIDIA driver", next_step=_NEXT_STEPS.get(name, _AGAIN))
    return api, nvrtc
