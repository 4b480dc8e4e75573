"""Contexts of a GPU, or of a slice of one, are opened once in a process, with the modules that were loaded into them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from edgeplan.cuda.building import Modules
from edgeplan.cuda.driver import Driver
from edgeplan.errors import DeviceError

_OPEN: dict[tuple[int, int], GpuContext] = {}
_LOCK = threading.Lock()


def gpu_name(driver: Driver, device: int) -> str:
    """Return the name of a GPU, such as "NVIDIA H200"."""
    return bytes(driver.call("cuDeviceGetName", 96, device)).split(b"\0")[0].decode(errors="replace")


class GpuContext:
    """A context is that of a GPU, or of a slice of one: a green context. `shared` opens it, and each `close` ends one use.

    Attributes:
        driver: calls the CUDA driver.
        name: of the GPU.
        units: multiprocessors that it has.
        is_slice: whether it is a green context.
        version: of the driver.
        modules: kernels loaded into it.
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
