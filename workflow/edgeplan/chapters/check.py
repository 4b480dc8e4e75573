"""Stage `check`: check the values of params.yaml as a whole, before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.base import DEVICES, ChapterParams, Targets
from edgeplan.chapters.registry import CHAPTERS, load_params
from edgeplan.devices.config import load_device
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError, ParamsError
from edgeplan.workspace import DEVICE_FOLDER, PAIR_FOLDER, shipped_rules


def check_params(path: Path, devices: Path = DEVICE_FOLDER) -> ChapterParams:
    """Read params.yaml and the file of every device and every pair that it names."""
    params = load_params(path)
    for place, name in _named(
        params, (DEVICES, *(targets for chapter in CHAPTERS.values() for targets in chapter.named_devices))
    ):
        load_device(_file("device", name, devices, f"{path}, {place}"))
    for place, name in _named(params, (targets for chapter in CHAPTERS.values() for targets in chapter.named_pairs)):
        load_pair(_file("pair", name, PAIR_FOLDER, f"{path}, {place}"))
    for place, name in _named(params, (targets for chapter in CHAPTERS.values() for targets in chapter.shipped_devices)):
        shipped_rules(name, where=place)
    return params


def _file(what: str, name: str, folder: Path, where: str) -> Path:
    file = folder / f"{name}.yaml"
    if not file.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml"))) or "none"
        raise DeviceError(
            f"unknown {what} {name!r}: there is no {file}",
            where=where,
            next_step=f"write that file, or name one of those there: {known}; "
            f"`dvc exp run` with --temp or --queue takes only files that git knows: git add {file}",
        )
    return file


def refuse_overlay(config: Mapping[str, Any], path: Path) -> None:
    """Refuse values that Snakemake was given beside params.yaml: the stages read that file alone, and would not see them."""
    written = yaml.safe_load(path.read_bytes())
    differing = sorted(key for key in {*config, *written} if config.get(key) != written.get(key))
    if differing:
        raise ParamsError(
            f"--config or --configfile gives other values than {path}, from which alone the stages read them",
            where=", ".join(differing),
            next_step=f"leave the option out and change {path}, or give values by `dvc exp run -S section.key=value`",
        )


def _named(params: ChapterParams, places: Iterable[Targets]) -> Iterator[tuple[str, str]]:
    """Yield every device that is named in some places, and under which key."""
    written = params.model_dump()
    for targets in dict.fromkeys(places):
        for target in targets.of(written):
            for wildcard, name in target.items():
                yield targets.path if len(target) == 1 else f"{targets.path}.{wildcard}", name
