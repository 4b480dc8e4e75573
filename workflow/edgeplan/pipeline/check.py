"""Stage `check`: params.yaml as a whole, before anything is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeplan.devices.config import DEVICE_FOLDER, load_device
from edgeplan.errors import DeviceError, ParamsError
from edgeplan.params import Params, load_params
from edgeplan.workspace import shipped_kernels


def check_params(path: Path, devices: Path = DEVICE_FOLDER) -> Params:
    """Read params.yaml and the file of every device that it names.

    Raises:
        ParamsError: a key is misspelt or missing, or a value is out of range.
        DeviceError: a device has no file in the folder `devices`, or one that does not fit; nothing is shipped of a prior one.
    """
    params = load_params(path)
    for place, name in _named(params):
        file = devices / f"{name}.yaml"
        if not file.is_file():
            known = ", ".join(sorted(p.stem for p in devices.glob("*.yaml"))) or "none"
            raise DeviceError(
                f"unknown device {name!r}: there is no {file}",
                where=f"{path}, {place}",
                next_step=f"write that file, or name one of those there: {known}; "
                f"`dvc exp run` with --temp or --queue takes only files that git knows: git add {file}",
            )
        load_device(file)
    for name in params.training.prior:
        shipped_kernels(name)
    return params


def refuse_overlay(config: Mapping[str, Any], path: Path) -> None:
    """Refuse values that Snakemake was given beside params.yaml: the stages read that file alone, and would not see them.

    Raises:
        ParamsError: a section of `config` differs from that of the file.
    """
    written = yaml.safe_load(path.read_text())
    differing = sorted(key for key in {*config, *written} if config.get(key) != written.get(key))
    if differing:
        raise ParamsError(
            f"--config or --configfile gives other values than {path}, from which alone the stages read them",
            where=", ".join(differing),
            next_step=f"leave the option out and change {path}, or give values by `dvc exp run -S section.key=value`",
        )


def _named(params: Params) -> Iterator[tuple[str, str]]:
    """Every device that is named, and under which key."""
    lists = {
        "devices": params.devices,
        "truth.repeat": params.truth.repeat,
        "unseen.devices": params.unseen.devices,
        "cold_start.devices": params.cold_start.devices,
    }
    for place, names in lists.items():
        for name in names:
            yield place, name
    yield "transfer.source", params.transfer.source
    yield "transfer.target", params.transfer.target
