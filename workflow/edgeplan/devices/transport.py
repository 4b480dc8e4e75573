"""A transport reaches a device: on this machine, over ssh, or by a command that runs the worker there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

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


class _Remote(BaseModel):
    """Describes a machine that a command reaches.

    Attributes:
        reconnect_seconds: how long a link that was cut is tried again; a board that reboots takes a minute or two.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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
