"""What a profile of `make reproduce` has a chapter measure, whatever the workspace's params.yaml says."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

#: Those that name less than params.yaml does.
PROFILES = ("tiny", "quick")


def asked_of(chapter: str, profile: str) -> dict[str, Any]:
    """The chapter's own section of a profile."""
    folder = Path(str(import_module(f"edgeplan.chapters.{chapter}").__file__)).parent
    values: dict[str, Any] = yaml.safe_load((folder / "profiles.yaml").read_text(encoding="utf-8"))[profile][chapter]
    return values
