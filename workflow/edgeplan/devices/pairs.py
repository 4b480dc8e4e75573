"""Reads pair files: `config/pairs/<name>.yaml`, two processors that run one model together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from edgeplan.devices.config import DeviceFile, Part, load_device, refuse_cores
from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import DeviceError
from edgeplan.support.files import FilePath, read_yaml
from edgeplan.workspace import DEVICE_NAME, workspace

if TYPE_CHECKING:
    from edgeplan.runtime.processor import Dispatcher, Processor

#: The setting of the stock engine of an NVIDIA GPU.
STOCK_GPU = "onnxruntime-cuda"
_Core = Annotated[int, Field(ge=0, le=100_000)]
_Device = Annotated[str, Field(pattern=rf"^{DEVICE_NAME.pattern}$")]


def processor_class(engine: str) -> type[Processor]:
    """Return the processor class of an engine."""
    found: type[Processor] = face(PROCESSORS, engine, "processor", "processor")
    return found


class Side(Part):
    """Names a processor of a pair.

    Attributes:
        name: its lane's, in messages.
        device: name of a device whose engine is a processor (`engines.registry.PROCESSORS`).
        cores: of the CPU that it computes on, a thread on each; none for a processor of its own.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
    device: _Device
    cores: Annotated[tuple[_Core, ...], Field(max_length=1024)] = ()


class PairFile(Part):
    """Names the two processors of a pair and how they wait for each other.

    Attributes:
        format_version: version of this schema.
        name: the file's stem, `pair-...`, unlike any device's; names everything measured on the pair.
        processors: the two, in the order of lanes. The first is the host: it computes in the thread that runs a model, on cores
            that are named; work is enqueued for the second.
        synchronisation: how each learns that the other is done: `auto` polls where that can work, else waits for events.
        rows_of: whom rows of checked plans are of: one `machine`, or any of its `kind` (processor, caches, cores) where the
            pair's machine is another one each time.
    """

    format_version: Literal[2]
    name: Annotated[str, Field(pattern=r"^pair(-[a-z0-9]+)+$")]
    description: str = ""
    processors: tuple[Side, Side]
    synchronisation: Literal["auto", "polling", "events"] = "auto"
    rows_of: Literal["machine", "kind"] = "machine"

    @model_validator(mode="after")
    def _apart(self) -> Self:
        host, other = self.processors
        if host.name == other.name:
            raise ValueError(f"processors: both are named {host.name}")
        for side in self.processors:
            if len(set(side.cores)) < len(side.cores):
                raise ValueError(f"{side.name}.cores: a core is named twice")
        if not host.cores:
            raise ValueError(f"{host.name}.cores: the first processor computes on cores, and none is named")
        if self.shared_cores and self.synchronisation != "events":
            core = min({*host.cores} & {*other.cores})
            raise ValueError(
                f"{other.name}.cores: core {core} is one of {host.name}.cores, where each would wait for the other's time "
                "slice; name another core, or synchronisation: events"
            )
        return self

    @property
    def shared_cores(self) -> bool:
        """Tell whether both processors compute on one core."""
        return not {*self.processors[0].cores}.isdisjoint(self.processors[1].cores)

    @property
    def cores(self) -> tuple[int, ...]:
        """Return all cores, those of the first processor first."""
        return tuple(dict.fromkeys(core for side in self.processors for core in side.cores))

    def devices(self) -> tuple[DeviceFile, DeviceFile]:
        """Read the device files of both processors."""
        host, other = self.processors
        return self._device(host, here=True), self._device(other, here=False)

    def takes_stock_gpu(self) -> bool:
        """Tell whether `STOCK_GPU` runs on the second processor: on a whole GPU, since it cannot be kept to a part."""
        device = self.devices()[1]
        return device.engine == "cuda" and "multiprocessors" not in device.options

    def _device(self, side: Side, *, here: bool) -> DeviceFile:
        where = f"pair {self.name!r}, field {side.name}.device"
        try:
            device = load_device(side.device)
            device.require_local("a pair runs")
            kind = processor_class(device.engine)
        except DeviceError as error:
            raise DeviceError(
                error.what, where=f"{where}: {error.where}" if error.where else where, next_step=error.next_step
            ) from error
        if here and not kind.here:
            raise DeviceError(
                f"device {side.device!r} runs on the engine {device.engine!r}, which does not compute in the calling thread",
                where=where,
                next_step="name it second, and first a device of the CPU, e.g. cpu-onednn",
            )
        return device

    def dispatcher(self, numbers: Mapping[str, int]) -> Dispatcher:
        """Return the dispatcher of the second processor for numbers that are stored; no processor is opened."""
        return processor_class(self.devices()[1].engine).dispatcher(numbers)

    def check_cores(self) -> None:
        """Refuse cores that this process may not use."""
        for side in self.processors:
            refuse_cores(side.cores, f"pair {self.name!r}, field {side.name}.cores", "a pair of cores takes two")


def load_pair(name_or_path: FilePath) -> PairFile:
    """Read a pair by the path of its file, or by its name in the workspace or among the shipped ones."""
    path = workspace().path("pair", name_or_path)
    pair = read_yaml(path, PairFile, DeviceError, "pair file")
    if pair.name != path.stem:
        raise DeviceError(
            f"pair file is named {path.stem!r} but says {pair.name!r}", where=str(path), next_step="make them agree"
        )
    pair.devices()
    return pair
