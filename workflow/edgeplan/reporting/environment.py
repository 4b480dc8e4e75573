"""Flattens a captured environment for a report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd


def flat_environment(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a captured environment without nesting: names joined by dots, lists as text."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flat_environment(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat


def environment_rows(environment: Mapping[str, Any]) -> pd.DataFrame:
    """Return a captured environment as rows of property and value; nested names are joined by dots."""
    return pd.DataFrame([(k, str(v)) for k, v in sorted(flat_environment(environment).items())], columns=["property", "value"])
