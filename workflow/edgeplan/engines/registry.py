"""Registers the engines edgeplan knows: its own, one folder each, and those that other packages bring.

Another package brings one by an entry point of the group `edgeplan.engines` that names a
`Description`. Its own engines are looked up first, so that nothing is searched for where they do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, packages_distributions, version
from typing import Any, TypeVar

from edgeplan.engines.base import Engine
from edgeplan.engines.description import Description, Setting, named_object
from edgeplan.errors import DeviceError
from edgeplan.support.store import Protocol
from edgeplan.support.subprocesses import program_command, run

log = logging.getLogger(__name__)
#: The group of entry points by which other packages bring engines.
GROUP = "edgeplan.engines"
#: Descriptions of this package's engines, in their folders; in the order of the tables.
_OWN = (
    *("onnxruntime:ENGINE", "openvino:ENGINE", "ncnn:ENGINE", "litert:ENGINE", "onednn:ENGINE"),
    *("gpu:OPENCL", "gpu:CUDA", "onnxruntime:ON_GPU"),
)
T = TypeVar("T")


@cache
def _own() -> Mapping[str, Description]:
    own: Iterator[Description] = (named_object(f"edgeplan.engines.{place}") for place in _OWN)
    return {engine.name: engine for engine in own}


@cache
def _brought() -> Mapping[str, Description]:
    """Return engines of other packages; one that cannot be imported is left out with a warning, and takes no other's name."""
    found: dict[str, Description] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            described = point.load()
        except Exception as error:  # noqa: BLE001  whatever another package raises must not end ours
            log.warning("engine %s is left out: %s cannot be loaded: %s", point.name, point.value, error)
            continue
        if not isinstance(described, Description) or described.name in {*_own(), *found}:
            why = "another engine has that name" if isinstance(described, Description) else "it is no Description"
            log.warning("engine %s of %s is left out: %s", point.name, point.value, why)
            continue
        found[described.name] = described
    return found


class _Registered(Mapping[str, T]):
    """This mapping holds values of descriptions by name, and searches other packages only for missing names."""

    def __init__(self, part: Callable[[Mapping[str, Description]], Mapping[str, T]]) -> None:
        self._part = part

    def __getitem__(self, name: str) -> T:
        own = self._part(_own())
        return own[name] if name in own else self._part(_brought())[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._part(_own())
        yield from self._part(_brought())

    def __len__(self) -> int:
        return sum(1 for _ in self)


#: Engines that models and kernels are measured on, by the name device files use.
ENGINES: Mapping[str, Description] = _Registered(lambda known: {name: one for name, one in known.items() if one.session})
#: Engines whose libraries compute on a processor of a pair, by the name device files use.
PROCESSORS: Mapping[str, Description] = _Registered(lambda known: {name: one for name, one in known.items() if one.processor})
#: What is started cold, by name.
SETTINGS: Mapping[str, Setting] = _Registered(
    lambda known: {name: found for engine in known.values() for name, found in engine.settings.items()}
)
#: The engine of each setting.
_OWNERS: Mapping[str, Description] = _Registered(
    lambda known: {name: engine for engine in known.values() for name in engine.settings}
)


def engine_class(name: str) -> type[Engine]:
    """Return the engine of that name."""
    found: type[Engine] = face(ENGINES, name, "engine", "session")
    return found


def face(registered: Mapping[str, Description], name: str, kind: str, attribute: str) -> Any:
    """Return the class that an attribute ("session", "processor") of a registered description names, imported now.

    Messages call what it describes by its kind.
    """
    if name not in registered:
        raise DeviceError(f"unknown {kind} {name!r}", next_step=f"known {kind}s: " + ", ".join(registered))
    cls = getattr(registered[name], attribute)
    try:
        return named_object(cls)
    except ImportError as error:
        raise DeviceError(
            f"{kind} {name!r} is not installed: {error}",
            where=f"import of {cls.partition(':')[0]}",
            next_step=registered[name].install,
        ) from error


def setting(name: str) -> Setting:
    """Return the setting of that name."""
    if name not in SETTINGS:
        raise DeviceError(f"unknown setting {name!r}", next_step="known settings: " + ", ".join(SETTINGS))
    return SETTINGS[name]


def version_of(name: str) -> str:
    """Return the version of a setting's engine, without importing it; "" where it is not installed."""
    known, found = setting(name), setting(name).engine
    if known.interpreter != sys.executable:
        asked = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
        return run(program_command(known.interpreter, "-I", "-c", asked, found)).stdout.decode().strip()
    with suppress(PackageNotFoundError):
        return version(found)
    built = packages_distributions().get(found.replace("-", "_"), ())  # the package under another name, as for GPUs
    return version(built[0]) if built else ""


def engine_protocol(face: str, engine: str) -> Protocol:
    """Return the protocol by which a face ("measure", "mapping" or "cold") of an engine is measured."""
    known = _own()
    described = known[engine] if engine in known else _brought().get(engine)
    if described is None or face not in described.protocols:
        raise DeviceError(
            f"there is no measuring protocol '{face}/{engine}'",
            where="edgeplan.engines.registry",
            next_step="name one in the protocols of the engine's Description",
        )
    return Protocol(described.protocols[face], described.earlier.get(face, ()))


def owner(name: str) -> Description:
    """Return the engine that a setting is of."""
    setting(name)
    return _OWNERS[name]


def setting_protocol(name: str) -> Protocol:
    """Return the protocol by which cold starts of a setting are timed."""
    return engine_protocol("cold", owner(name).name)
