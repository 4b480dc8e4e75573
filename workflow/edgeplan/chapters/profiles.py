"""Reads the values of a profile: of its own file, and of the chapters' `profiles.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from edgeplan.chapters.registry import CHAPTERS


def profile(path: Path) -> dict[str, Any]:
    """Read the values of a profile by its name: of its file, and of the chapters' own `profiles.yaml`."""
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for name in CHAPTERS:
        own = Path(__file__).parent / name / "profiles.yaml"
        if own.is_file():
            values = _merged(values, yaml.safe_load(own.read_text(encoding="utf-8")).get(path.stem, {}))
    return values


def _merged(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {**base, **{k: _merged(base.get(k, {}), v) if isinstance(v, Mapping) else v for k, v in values.items()}}
