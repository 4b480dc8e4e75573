"""Calls the CUDA driver and NVRTC through cuda-bindings; every error of theirs becomes one of edgeplan's.

Modules are loaded when a processor is opened: where no NVIDIA driver is, nothing of this is imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from edgeplan.errors import DeviceError, StoreError
from edgeplan.opencl.building import ProgramSource, program_source
from edgeplan.support.files import state_folder, write_atomically

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
    """The driver calls functions by their names, and raises what they report."""

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


_OPEN: dict[tuple[int, int], GpuContext] = {}
_LOCK = threading.Lock()
_DIGEST_BYTES = 32
_KERNEL = re.compile(r"__kernel\s+void\s+(\w+)\s*\(")
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", re.MULTILINE)
_OPTIONS = ("--device-as-default-execution-space", "--std=c++17", "--diag-suppress=2473")


@cache
def translated(source: str, defines: tuple[tuple[str, int], ...]) -> ProgramSource:
    """Return a kernel file of `opencl/sources` with its macros, as CUDA C++."""
    found = program_source(source, defines)
    options = (*_OPTIONS, *(option for option in found.options if option.startswith("-D")))
    return ProgramSource(name=found.name, text=_prelude() + found.text, options=options)


@cache
def _prelude() -> str:
    return Path(__file__).with_name("prelude.h").read_text(encoding="utf-8")


@cache
def merged(sources: tuple[ProgramSource, ...]) -> ProgramSource:
    """Return one program with the kernels of several translated sources, each kernel under its name in it (`merged_name`).

    Each source has a namespace and its own macros, which end with it; a driver loads the whole as one module.
    """
    prelude, parts = _prelude(), []
    lasting = set(_MACRO.findall(prelude))
    for number, source in enumerate(sources):
        text = source.text.removeprefix(prelude)
        given = [option.removeprefix("-D").partition("=") for option in source.options if option.startswith("-D")]
        kernels = [(name, "", merged_name(name, number)) for name in _KERNEL.findall(text)]
        own = [*_MACRO.findall(text), *(name for name, _, _ in (*given, *kernels))]
        begin = "".join(f"#define {name} {value}\n" for name, _, value in (*given, *kernels))
        end = "".join(f"#undef {name}\n" for name in dict.fromkeys(own) if name not in lasting)
        parts.append(f"{begin}namespace source_{number} {{\n{text}\n}}\n{end}")
    return ProgramSource(name=f"{len(sources)} sources", text=prelude + "".join(parts), options=_OPTIONS)


def merged_name(kernel: str, number: int) -> str:
    """Return the name of a kernel in a merged program."""
    return f"{kernel}_of_{number}"


class Modules:
    """The kernels of one context, which is current, compiled at most once on a machine; and the codes that it was given.

    Code that a driver of another identity was given is not loaded.
    """

    def __init__(self, driver: Driver, architecture: str, identity: str) -> None:
        self._driver, self._architecture, self._identity = driver, architecture, identity
        self._loaded: dict[ProgramSource, Any] = {}
        self._places: dict[ProgramSource, tuple[ProgramSource, int]] = {}  # of sources in merged programs
        self._replaced: list[Any] = []
        self._lock = threading.Lock()
        self.codes: dict[ProgramSource, bytes] = {}

    @property
    def target(self) -> str:
        """Return the architecture and the driver that code is for."""
        return f"{self._architecture}; {self._identity}"

    def function(self, asked: ProgramSource, name: str) -> Any:
        """Return a kernel of a source."""
        if asked in self._places:
            asked, number = self._places[asked]
            name = merged_name(name, number)
        with self._lock:
            if asked not in self._loaded:
                self._loaded[asked] = self._driver.call("cuModuleLoadData", self._code(asked))
        return self._driver.call("cuModuleGetFunction", self._loaded[asked], name.encode())

    def take_from(self, whole: ProgramSource, sources: Sequence[ProgramSource]) -> None:
        """Take the kernels of sources from a merged program from now on."""
        self._places.update({source: (whole, number) for number, source in enumerate(sources)})

    def load(self, asked: ProgramSource, code: bytes) -> None:
        """Load machine code of a source that an earlier process compiled."""
        with self._lock:
            earlier = self._loaded.get(asked)
            self._loaded[asked] = self._driver.call("cuModuleLoadData", code)
            self.codes[asked] = code
            if earlier is not None:
                self._replaced.append(earlier)  # kernels that were made from it may still run

    def compile(self, asked: ProgramSource) -> None:
        """Compile a source, whatever was kept of it, and load it."""
        self.load(asked, self._fresh(asked))

    def code_of(self, asked: ProgramSource) -> bytes:
        """Return the machine code of a source, compiled now if it was not."""
        with self._lock:
            if asked not in self.codes:
                self.codes[asked] = self._fresh(asked)
            return self.codes[asked]

    def close(self) -> None:
        """Unload all; no kernel runs any more."""
        while self._loaded or self._replaced:
            module = self._replaced.pop() if self._replaced else self._loaded.popitem()[1]
            self._driver.call("cuModuleUnload", module)

    def _code(self, asked: ProgramSource) -> bytes:
        parts = (asked.text, *self._options(asked), self._driver.compiler, self._identity)
        key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        path, kept = None, b""
        with contextlib.suppress(StoreError, OSError):  # it is compiled, then
            path = state_folder() / "cuda" / f"{key}.cubin"
            kept = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(kept[_DIGEST_BYTES:]).digest() == kept[:_DIGEST_BYTES]:
            return kept[_DIGEST_BYTES:]
        code = self._fresh(asked)
        if path is not None:
            with contextlib.suppress(StoreError, OSError):  # it is compiled again next time
                path.parent.mkdir(parents=True, exist_ok=True)
                content = hashlib.sha256(code).digest() + code
                write_atomically(path, lambda file: file.write_bytes(content))
        return code

    def _options(self, asked: ProgramSource) -> list[str]:
        return [f"--gpu-architecture={self._architecture}", *asked.options]

    def _fresh(self, asked: ProgramSource) -> bytes:
        code = self._driver.compiled(asked.name, asked.text, self._options(asked))
        if not code:
            raise DeviceError("NVRTC gave no code", where=asked.name, next_step="install another version of nvidia-cuda-nvrtc")
        return code


def gpu_name(driver: Driver, device: int) -> str:
    """Return the name of a GPU, such as "NVIDIA H200"."""
    return bytes(driver.call("cuDeviceGetName", 96, device)).split(b"\0")[0].decode(errors="replace")


class GpuContext:
    """A context is that of a GPU, or of a slice of one: a green context. `shared` opens it, and each `close` ends one use.

    It has so many units, multiprocessors, and is a slice where it is a green context.
    """

    def __init__(self, driver: Driver, device: int, multiprocessors: int) -> None:
        self.driver, self.is_slice, self._key, self._users = driver, bool(multiprocessors), (device, multiprocessors), 0
        self._device = driver.call("cuDeviceGet", device)
        self.name = gpu_name(driver, self._device)
        driver.name = self.name
        self._retained = driver.call("cuDevicePrimaryCtxRetain", self._device)
        self._green: Any = None
        try:
            driver.call("cuCtxSetCurrent", self._retained)
            self._current, self.units = self._retained, self.attribute("MULTIPROCESSOR_COUNT")
            if multiprocessors:
                self._current, self.units = self._sliced(multiprocessors)
            major, minor = (self.attribute(f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
            self.version = int(driver.call("cuDriverGetVersion"))
            self.modules = Modules(driver, f"sm_{major}{minor}", f"{self.name} {self.version}")
        except BaseException:
            self._end()
            raise

    @classmethod
    def shared(cls, driver: Driver, device: int, multiprocessors: int) -> GpuContext:
        """Return the open context of a GPU or a slice, opened now if it is not, and current for the calling thread."""
        with _LOCK:
            key = device, multiprocessors
            found = _OPEN.get(key) or cls(driver, device, multiprocessors)
            found.use()
            _OPEN[key] = found
            return found

    def enter(self) -> None:
        """Make it current for the calling thread."""
        self.driver.call("cuCtxSetCurrent", self._current)

    def use(self) -> None:
        """Begin one use, in the calling thread."""
        self.enter()
        self._users += 1

    def attribute(self, name: str) -> int:
        """Return a number of the GPU by the end of its name (CU_DEVICE_ATTRIBUTE_...)."""
        attribute = getattr(self.driver.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.driver.call("cuDeviceGetAttribute", attribute, self._device))

    def stream(self) -> Any:
        """Make a queue of its own."""
        flag = self.driver.api.CUstream_flags.CU_STREAM_NON_BLOCKING
        if self._green is None:
            return self.driver.call("cuStreamCreate", flag)
        return self.driver.call("cuGreenCtxStreamCreate", self._green, flag, 0)

    def _sliced(self, wanted: int) -> tuple[Any, int]:
        """A slice as the current context, and its multiprocessors."""
        driver, api, units = self.driver, self.driver.api, self.units
        if wanted > units:
            raise DeviceError(
                f"{wanted} multiprocessors are more than the {units} of {driver.name}",
                where="the device file, field options",
                next_step=f"multiprocessors: '{units // 8 * 8}' or fewer",
            )
        whole = driver.call("cuDeviceGetDevResource", self._device, api.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
        groups, _, _ = driver.call("cuDevSmResourceSplitByCount", 1, whole, 0, wanted)
        given = int(groups[0].sm.smCount)
        if given != wanted:
            raise DeviceError(
                f"{driver.name} has no slices of {wanted} multiprocessors", where="the device file, field options",
                next_step=f"multiprocessors: '{given}'",
            )  # fmt: skip
        described = driver.call("cuDevResourceGenerateDesc", [groups[0]], 1)
        flag = api.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        self._green = driver.call("cuGreenCtxCreate", described, self._device, flag)
        current = driver.call("cuCtxFromGreenCtx", self._green)
        driver.call("cuCtxSetCurrent", current)
        return current, given

    def close(self) -> None:
        """End one use; after the last one nothing of it is left."""
        with _LOCK:
            self._users -= 1
            if self._users == 0:
                del _OPEN[self._key]
                self._end()

    def _end(self) -> None:
        for step in self._endings():
            with contextlib.suppress(DeviceError, AttributeError):  # it was said where it mattered, or was never opened
                step()

    def _endings(self) -> Iterator[Any]:
        driver = self.driver
        if hasattr(self, "modules"):
            yield self.modules.close
        if self._green is not None:
            yield lambda: driver.call("cuCtxSetCurrent", self._retained)
            yield lambda: driver.call("cuGreenCtxDestroy", self._green)
        yield lambda: driver.call("cuDevicePrimaryCtxRelease", self._device)
