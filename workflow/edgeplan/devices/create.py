"""Writes a device file for this machine: `edgeplan device init`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError
from edgeplan.support.files import validate, write_text
from edgeplan.workspace import DEVICE_FOLDER, PAIR_FOLDER, workspace

_COMMENTS = {
    "cores": "the processors the measuring process is pinned to",
    "options": "settings of the engine itself",
    "big_cores": "cold starts: processors that execute; empty: all of them, as equal cores",
    "little_cores": "cold starts: further processors that only prepare",
}


def create_device(
    name: str, *, engine: str = "", threads: int = 0, cores: Sequence[int] = (), force: bool = False
) -> tuple[DeviceFile, Path]:
    """Write a device file for an engine on this machine; give the device and its file.

    Args:
        name: lower-case letters and digits, with single hyphens between them.
        engine: name of a registered engine; "" takes the first that is installed.
        threads: of one inference; 0 takes one for each core that is named, else one.
        cores: processors to pin to; without, the last ones that this process may use, one a thread: the first of a machine
            has most of the system's own work.
        force: overwrite a file that is there.
    """
    path = _own_folder() / DEVICE_FOLDER / f"{name}.yaml"
    usable = sorted(os.sched_getaffinity(0))
    count = threads or len(cores) or 1
    engine = engine or _installed()
    document = {
        "format_version": 1,
        "name": name,
        "description": f"{engine} on {count} core{'s' if count > 1 else ''} of this machine, f32",
        "engine": engine,
        "threads": count,
        "cores": list(cores) or usable[-count:],
        "transport": "local",
        "options": {},
        "big_cores": [],
        "little_cores": [],
        "little_ratio": 1.0,
    }
    device = validate(document, DeviceFile, DeviceError, "the device", f"device {name!r}")  # first: a path is made of the name
    engine_class(device.engine).version()
    device.check_cores()
    if (distinct := len(set(device.cores))) < device.threads:
        what = f"{device.threads} threads would share {distinct} of the cores {', '.join(map(str, usable))}"
        next_step = "name as many cores as threads, or fewer threads"
        raise DeviceError(what, where=f"device {device.name!r}", next_step=next_step)
    _write(path, document, force=force)
    return load_device(path), path


def create_pair(name: str, second: str, *, cores: Sequence[int] = (), force: bool = False) -> tuple[PairFile, Path]:
    """Write a pair file for this machine: its CPU, by cpu-onednn, beside a device; give the pair and its file.

    Args:
        name: `pair-`, then as for devices.
        second: name of the device beside the CPU, such as cuda-h200.
        cores: of the CPU; without, all that this process may use.
        force: overwrite a file that is there.
    """
    path = _own_folder() / PAIR_FOLDER / f"{name}.yaml"
    first = {"name": "cpu", "device": "cpu-onednn", "cores": list(cores) or sorted(os.sched_getaffinity(0))}
    document = {
        "format_version": 2,
        "name": name,
        "description": f"oneDNN on {len(first['cores'])} cores of this machine beside {second}, f32",
        "processors": [first, {"name": "gpu", "device": second}],
    }
    pair = validate(document, PairFile, DeviceError, "the pair", f"pair {name!r}")
    pair.check_cores()
    pair.devices()
    _write(path, document, force=force)
    return load_pair(path), path


def _own_folder() -> Path:
    """Return the folder of the workspace, or this one."""
    here = workspace()
    return here.root if here.found else Path()


def _write(path: Path, document: dict[str, object], *, force: bool) -> None:
    if path.exists() and not force:
        next_step = "take another name, or overwrite with --force"
        raise DeviceError(f"there is a file of {path.stem!r} already", where=str(path), next_step=next_step)
    write_text(path, _text(document))


def _installed() -> str:
    """Return the name of the first engine that is installed."""
    for name in ENGINES:
        try:
            engine_class(name).version()
        except DeviceError:
            continue
        return name
    next_step = "; ".join(engine.install for engine in ENGINES.values())
    raise DeviceError("no engine is installed", where="edgeplan device init", next_step=next_step)


def _text(document: dict[str, object]) -> str:
    lines = []
    for key, value in document.items():
        line = yaml.safe_dump({key: value}, default_flow_style=False, allow_unicode=True, width=1000).strip()
        if isinstance(value, (list, dict)):
            line = f"{key}: {yaml.safe_dump(value, default_flow_style=True, width=1000).strip()}"
        lines.append(f"{line} # {_COMMENTS[key]}" if key in _COMMENTS else line)
    return "\n".join(lines) + "\n"
