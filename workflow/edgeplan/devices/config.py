"""Reads device files: `config/devices/<name>.yaml` in a workspace, and those that the package ships.

A transport reaches a device: on this machine, over ssh, or by a command that runs the worker there.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from edgeplan.engines.base import Engine, EngineSettings
from edgeplan.engines.registry import ENGINES, PROCESSORS, engine_class
from edgeplan.errors import DeviceError
from edgeplan.support import cpus
from edgeplan.support.cpus import least_loaded, others_load, pin_threads
from edgeplan.support.files import FilePath, read_yaml
from edgeplan.workspace import DEVICE_FOLDER, DEVICE_NAME, workspace

#: What OpenSSH may be told as a destination: never an option, a space or a quote.
_HOST = r"^[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]{0,254}$"
_Word = Annotated[str, Field(min_length=1, max_length=16384, pattern=r"^[^\x00]+$")]
#: Python of the environment that `edgeplan device deploy` makes, below the home folder, where ssh begins.
DEPLOYED_PYTHON = ".local/share/edgeplan/environment/bin/python"
_SSH = (
    "ssh",
    *("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)


class Part(BaseModel):
    """A part of a file: a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class _Remote(Part):
    """Describes a machine that a command reaches.

    Attributes:
        reconnect_seconds: how long a link that was cut is tried again; a board that reboots takes a minute or two.
    """

    reconnect_seconds: Annotated[float, Field(ge=0, le=86400)] = 300.0


class SshTransport(_Remote):
    """Reaches a machine by OpenSSH's own client, with its configuration, keys and jump hosts.

    Attributes:
        host: a destination as `ssh` takes it: a name of ssh_config, or user@host.
        python: the interpreter there, of an environment that has edgeplan in it.
        config: an ssh_config file in place of the user's.
    """

    kind: Literal["ssh"]
    host: Annotated[str, Field(pattern=_HOST)]
    python: Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,1000}$")] = DEPLOYED_PYTHON
    config: str = ""

    def reaching(self, *words: str) -> list[str]:
        """Make the command that runs words on the board: ssh joins what it is given, so they are quoted once."""
        own = ("-F", self.config) if self.config else ()
        return [*_SSH, *own, "--", self.host, shlex.join(words)]

    def worker_command(self) -> list[str]:
        """Make the command that runs the worker there."""
        return self.reaching(self.python, "-m", "edgeplan", "worker")

    @property
    def place(self) -> str:
        """Name the machine, for messages."""
        return f"host {self.host}"


class CommandTransport(_Remote):
    """Reaches a worker by any command that passes its standard input and output on: docker exec -i, kubectl exec -i, adb shell.

    Attributes:
        argv: the command and its words, as they are: no shell sees them.
        deploy: the command up to the interpreter, which runs what is appended to it there: for `edgeplan device deploy`.
    """

    kind: Literal["command"]
    argv: Annotated[tuple[_Word, ...], Field(min_length=1, max_length=256)]
    deploy: Annotated[tuple[_Word, ...], Field(max_length=256)] = ()

    def worker_command(self) -> list[str]:
        """Give the command as the file has it."""
        return list(self.argv)

    @property
    def place(self) -> str:
        """Name the machine, for messages."""
        return f"command {shlex.join(self.argv)[:120]}"


def _kind(given: object) -> str | None:
    """Tell which transport a field of a device file is meant to be."""
    if isinstance(given, str):
        return given if given == "local" else None
    return given.get("kind") if isinstance(given, Mapping) else getattr(given, "kind", None)


#: The field `transport` of a device file.
Transport = Annotated[
    Annotated[Literal["local"], Tag("local")]
    | Annotated[SshTransport, Tag("ssh")]
    | Annotated[CommandTransport, Tag("command")],
    Discriminator(
        _kind,
        custom_error_type="transport",
        custom_error_message="Input should be local, {kind: ssh, host: ...} or {kind: command, argv: [...]}",
    ),
]


def refuse_cores(cores: Iterable[int], where: str, else_do: str) -> None:
    """Refuse cores that do not exist, and those that an affinity or a cpuset withholds from this process."""
    count, usable = os.cpu_count() or 1, cpus.allowed()
    if wrong := [core for core in cores if core not in usable]:
        raise DeviceError(
            f"core {wrong[0]} may not be used by this process"
            if wrong[0] < count
            else f"core {wrong[0]} does not exist on this machine (it has {count})",
            where=where,
            next_step=f"name cores among {', '.join(map(str, sorted(usable)))}; {else_do}",
        )


class GateSettings(Part):
    """A gate says when a board is fit to measure; each batch waits for it.

    Attributes:
        max_celsius: no batch begins while a thermal zone is hotter; none is kept during which one was.
        governor: frequency governor that its processors must have; "" takes any.
        wait_seconds: how long a batch waits for a board to cool down.
    """

    max_celsius: Annotated[float, Field(ge=0, le=150, allow_inf_nan=False)] | None = None
    governor: Annotated[str, Field(pattern=r"^[a-z_]{0,32}$")] = ""
    wait_seconds: Annotated[float, Field(ge=0, le=86400)] = 600.0


class DeviceFile(Part):
    """Describes one device: an engine with its settings on named cores.

    Attributes:
        format_version: version of this schema; 2 has boards, which a command reaches, and settings of a device.
        name: the file's stem; names everything measured on the device.
        engine: name of a registered engine, or of one that is a processor of pairs alone.
        threads: threads of one inference.
        cores: processors the measuring process is pinned to; empty leaves it to the system.
        spare_cores: processors of the same kind that stand in for `cores` while others use those.
        transport: how the device is reached; `local` is this machine.
        machine: label of the physical machine; devices of one label are measured one after the other.
        architecture: what the board's Python calls its processor, e.g. aarch64; "" takes any.
        fingerprint: of the board, as `edgeplan device check` tells it; "" takes whichever answers. Of a GPU of this machine:
            that of the machine where its rows were begun, which rows of a card of the same name are added to.
        emulated: whether the board may be an emulated one, whose times say nothing: for tests of the way there.
        gate: when the board is fit to measure.
        options: settings of the engine itself.
        settings: values of params.yaml, by section, that hold on this device in place of those for all: a GPU behind a queue is
            measured for minutes.
        big_cores: processors that execute a cold start; empty: all processors, as equal cores.
        little_cores: further processors that only prepare it; empty: some of the equal cores prepare until execution widens.
        little_ratio: preparation on a little core takes this many times its own duration, by waiting: stands for an asymmetric
            chip on a machine of equal cores; 1 where the little cores are slower by themselves.

    The last three plan cold starts only. Rows of the first chapter are keyed by name, threads, cores
    and options alone.
    """

    format_version: Literal[1, 2]
    name: Annotated[str, Field(max_length=64, pattern=rf"^{DEVICE_NAME.pattern}$")]
    description: str = ""
    engine: str
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    spare_cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    transport: Transport = "local"
    machine: Annotated[str, Field(pattern=r"^[a-z0-9-]{0,64}$")] = ""
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{0,32}$")] = ""
    fingerprint: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""
    emulated: bool = False
    gate: GateSettings = GateSettings()
    options: dict[str, str] = {}
    settings: dict[str, dict[str, Any]] = {}
    big_cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    little_cores: tuple[Annotated[int, Field(ge=0)], ...] = ()
    little_ratio: Annotated[float, Field(ge=1, le=100, allow_inf_nan=False)] = 1.0

    @model_validator(mode="after")
    def _core_sets(self) -> DeviceFile:
        cores = (*self.big_cores, *self.little_cores)
        if len(set(cores)) < len(cores):
            raise ValueError("big_cores, little_cores: a core is named twice")
        if self.little_cores and not self.big_cores:
            raise ValueError("big_cores: needed beside little_cores")
        if self.little_ratio != 1 and not self.little_cores:
            raise ValueError("little_ratio: only with little_cores")
        newer = {"machine", "architecture", "fingerprint", "emulated", "gate", "settings"} & self.model_fields_set
        if self.format_version < 2 and (newer or self.transport != "local"):
            raise ValueError(f"{', '.join(sorted(newer)) or 'transport'}: needs format_version: 2")
        return self

    @property
    def board(self) -> SshTransport | CommandTransport | None:
        """Return how to reach a device on another machine; None for one on this machine."""
        return None if self.transport == "local" else self.transport

    def require_local(self, what: str) -> None:
        """Refuse a board where something (`what`, a subject with its verb) works on this machine alone."""
        if self.board is not None:
            raise DeviceError(
                f"{what} on this machine alone, and the device is reached by {self.board.place}",
                where=f"device {self.name!r}, field transport",
                next_step="run the command on that machine, with a device file whose transport is local",
            )

    def load_engine(self) -> Engine:
        """Return the engine, set up as the file says."""
        return engine_class(self.engine)(self._settings)

    def engine_version(self) -> str:
        """Return the version of the engine, and of the driver that the file's options name."""
        return engine_class(self.engine).version_for(self._settings)

    @property
    def _settings(self) -> EngineSettings:
        return EngineSettings(threads=self.threads, options=self.options)

    def check_cores(self) -> None:
        """Refuse cores that do not exist, or that this process was not given."""
        refuse_cores(self.cores, f"device {self.name!r}, field cores", "or leave the list empty")

    def pin(self) -> None:
        """Pin this process and its threads to the device's cores, or to spare ones while others use those."""
        if not self.cores:
            return
        self.check_cores()
        cores, spare = self.cores, [core for core in self.spare_cores if core in cpus.allowed()]
        if spare:
            cores = least_loaded(self.cores, spare, others_load((*self.cores, *spare)))
        try:
            pin_threads(cores)
        except OSError as error:  # a container may have fewer cores than the machine
            usable = ", ".join(str(core) for core in sorted(os.sched_getaffinity(0)))
            raise DeviceError(
                f"cores {', '.join(str(core) for core in self.cores)} may not all be used by this process: {error.strerror}",
                where=f"device {self.name!r}, field cores",
                next_step=f"name cores among {usable}, or leave the list empty",
            ) from error


def load_device(name_or_path: FilePath) -> DeviceFile:
    """Read a device by the path of its file, or by its name in the workspace or among the shipped ones."""
    path = workspace().path("device", name_or_path)
    device = read_yaml(path, DeviceFile, DeviceError, "device file")
    if device.name != path.stem:
        raise DeviceError(
            f"device file is named {path.stem!r} but says {device.name!r}", where=str(path), next_step="make them agree"
        )
    if device.engine not in ENGINES and device.engine not in PROCESSORS:
        raise DeviceError(
            f"unknown engine {device.engine!r}",
            where=f"{path}, field engine",
            next_step="known engines: " + ", ".join(ENGINES),
        )
    return device


def is_here(name: str) -> bool:
    """Tell whether a device of this workspace is on this machine, whose cores all measuring here takes; "" is."""
    return not name or load_device(DEVICE_FOLDER / f"{name}.yaml").board is None


def machine_of(name: str) -> str:
    """Name the physical machine of a device: its `machine`, else itself; `local` is this one.

    Devices of one machine are measured one after the other.
    """
    return "local" if is_here(name) else load_device(DEVICE_FOLDER / f"{name}.yaml").machine or name
