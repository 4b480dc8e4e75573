"""Pair files: `config/pairs/<name>.yaml`, two processors that run one model together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.devices.config import DeviceFile, load_device, refuse_cores
from edgeplan.errors import DeviceError
from edgeplan.support.files import read_yaml
from edgeplan.workspace import DEVICE_NAME, is_path, workspace

PAIR_FOLDER = Path("config/pairs")
_Core = Annotated[int, Field(ge=0, le=100_000)]
_Device = Annotated[str, Field(pattern=rf"^{DEVICE_NAME.pattern}$")]
_CPU_ENGINE, _GPU_ENGINE = "onednn", "opencl"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CpuSide(_Part):
    """The processor that the program itself runs on.

    Attributes:
        device: name of a device whose engine is `onednn`.
        threads: that compute.
        cores: that they are pinned to.
    """

    device: _Device
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    cores: Annotated[tuple[_Core, ...], Field(min_length=1, max_length=1024)]


class GpuSide(_Part):
    """The processor that work is enqueued for.

    Attributes:
        device: name of a device whose engine is `opencl`.
        core: of the CPU that stands in for it; none for a processor of its own.
    """

    device: _Device
    core: _Core | None = None


class PairFile(_Part):
    """Two processors.

    Attributes:
        format_version: version of this schema.
        name: the file's stem, `pair-...`, unlike any device's; names everything measured on the pair.
        cpu, gpu: the two.
        synchronisation: how each learns that the other is done: `auto` polls where that can work, else waits for events.
    """

    format_version: Literal[1]
    name: Annotated[str, Field(pattern=r"^pair(-[a-z0-9]+)+$")]
    description: str = ""
    cpu: CpuSide
    gpu: GpuSide
    synchronisation: Literal["auto", "polling", "events"] = "auto"

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if len(set(self.cpu.cores)) < len(self.cpu.cores):
            raise ValueError("cpu.cores: a core is named twice")
        if self.cpu.threads > len(self.cpu.cores):
            raise ValueError(f"cpu.threads: {self.cpu.threads} threads on {len(self.cpu.cores)} core(s)")
        if self.shared_cores and self.synchronisation != "events":
            raise ValueError(
                f"gpu.core: core {self.gpu.core} is one of cpu.cores, where each would wait for the other's time slice; "
                "name another core, or synchronisation: events"
            )
        return self

    @property
    def shared_cores(self) -> bool:
        """Whether both processors compute on one core."""
        return self.gpu.core in self.cpu.cores

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores, those of the CPU first."""
        return self.cpu.cores if self.gpu.core is None else tuple(dict.fromkeys((*self.cpu.cores, self.gpu.core)))

    def devices(self) -> tuple[DeviceFile, DeviceFile]:
        """The device files of the CPU and of the GPU.

        Raises:
            DeviceError: unknown device, a file that does not fit, or an engine of the other side.
        """
        return (
            self._device("cpu", self.cpu.device, _CPU_ENGINE),
            self._device("gpu", self.gpu.device, _GPU_ENGINE),
        )

    def _device(self, side: str, name: str, engine: str) -> DeviceFile:
        where = f"pair {self.name!r}, field {side}.device"
        try:
            device = load_device(name)
        except DeviceError as error:
            raise DeviceError(
                error.what, where=f"{where}: {error.where}" if error.where else where, next_step=error.next_step
            ) from error
        if device.engine != engine:
            raise DeviceError(
                f"device {name!r} runs on the engine {device.engine!r}, not {engine!r}",
                where=where,
                next_step=f"name a device whose engine is {engine}",
            )
        return device

    def check_cores(self) -> None:
        """Refuse cores that this process may not use.

        Raises:
            DeviceError: a core does not exist here, or may not be used.
        """
        for field, cores in (("cpu.cores", self.cpu.cores), ("gpu.core", () if self.gpu.core is None else (self.gpu.core,))):
            refuse_cores(cores, f"pair {self.name!r}, field {field}", "a pair of cores takes two")


def load_pair(name_or_path: str | Path) -> PairFile:
    """Read a pair by the path of its file, or by its name in the workspace.

    Raises:
        DeviceError: unknown pair, a file that does not fit, or a device that is not there.
    """
    path = _path(name_or_path)
    pair = read_yaml(path, PairFile, DeviceError, "pair file")
    if pair.name != path.stem:
        raise DeviceError(
            f"pair file is named {path.stem!r} but says {pair.name!r}", where=str(path), next_step="make them agree"
        )
    pair.devices()
    return pair


def _path(name_or_path: str | Path) -> Path:
    if is_path(name_or_path):
        return Path(name_or_path)
    name, folder = str(name_or_path), workspace().root / PAIR_FOLDER
    known = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    if name not in known:
        raise DeviceError(
            f"unknown pair {name!r}",
            where=str(folder),
            next_step=f"known pairs: {', '.join(known) or 'none'}; or name the path of a pair file",
        )
    return known[name]
