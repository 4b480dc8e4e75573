"""Estimates the time of a whole run before it starts: the sum over the chapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.base import ChapterParams, load
from edgeplan.chapters.registry import CHAPTERS

_STARTS_S = 60.0  # the zoo, the reports, and starting a dozen stages
_HOURS_FROM = 180  # minutes


def merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return params with the values of a profile, as `dvc exp run -S` sets them."""
    return {**base, **{k: merged(base.get(k, {}), v) if isinstance(v, Mapping) else v for k, v in values.items()}}


def profile(path: Path) -> dict[str, Any]:
    """Read the values of a profile by its name: of its file, and of the chapters' own `profiles.yaml`."""
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for name in CHAPTERS:
        own = Path(__file__).parent / name / "profiles.yaml"
        if own.is_file():
            values = merged(values, yaml.safe_load(own.read_text(encoding="utf-8")).get(path.stem, {}))
    return values


def estimate(params: ChapterParams, engines: Sequence[str]) -> dict[str, float]:
    """Estimate the seconds of each part of a run on all devices, where nothing is stored yet; `engines` are the devices'."""
    found: dict[str, float] = {}
    for chapter in CHAPTERS.values():
        if chapter.estimate:
            found |= load(chapter.estimate)(params, engines)
    return found | {"the rest": _STARTS_S}


def told(seconds: Mapping[str, float]) -> str:
    """Return the estimate as one line."""
    minutes = {name: value / 60 for name, value in seconds.items()}
    total = sum(minutes.values())
    whole = f"{total:.0f} minutes" if total < _HOURS_FROM else f"{total / 60:.0f} hours"
    parts = ", ".join(f"{name} {value:.0f}" for name, value in minutes.items() if value >= 0.5)  # rounds to 0
    return (
        f"about {whole} on two quiet cores (in minutes: {parts}); what is stored is not measured again, "
        "and a slower or noisier machine takes longer"
    )
