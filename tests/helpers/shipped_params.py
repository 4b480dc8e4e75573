"""The settings that tests build on: those of the shipped results, whatever a run has left in the checkout's params.yaml."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

PARAMS_FILE = Path(__file__).with_name("params.yaml")
#: Profiles of `make reproduce` that name less than params.yaml does.
PROFILES = ("tiny", "quick")


def asked_of(chapter: str, profile: str) -> dict[str, Any]:
    """What a profile has a chapter measure: its own section of it."""
    folder = Path(str(import_module(f"edgeplan.chapters.{chapter}").__file__)).parent
    values: dict[str, Any] = yaml.safe_load((folder / "profiles.yaml").read_text(encoding="utf-8"))[profile][chapter]
    return values
