"""Nominal times of the references, taken on the quiet machine, are the scale of measured times.

They are what the references take in an ordinary moment, not in the best one: a machine that nobody else uses is 4 to 8 % slower
in most minutes than in its best, and users measure in most minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.support.files import state_folder
from edgeplan.support.machine import fingerprint

_SECONDS = 6.0
#: Of the times of the references, from the least: the median of the quieter half, so that other work in fewer than half of the
#: moments changes nothing.
_QUANTILE = 0.25


def nominal_times(device: str, rows: Path, references: References, runs: int) -> ReferenceTimes:
    """Return the reference times of stored rows of this device and machine; measure them now where there are none.

    Args:
        device: its name.
        rows: folder of all rows.
        references: to measure with, on the cores that count.
        runs: of each reference at a time.
    """
    here = fingerprint()
    for identity in _identities(device, rows):
        if identity.get("fingerprint") == here and identity.get("device", {}).get("name") == device:
            return ReferenceTimes(float(identity["nominal_compute_us"]), float(identity["nominal_bandwidth_us"]))
    return quiet_times(references, runs)


def quiet_times(references: References, runs: int, seconds: float | None = None) -> ReferenceTimes:
    """Time the references for some seconds, `runs` of each at a time; return the median times of the quieter half."""
    times, end = [references.time(runs)], time.monotonic() + (_SECONDS if seconds is None else seconds)
    while time.monotonic() < end:
        times.append(references.time(runs))
    return ReferenceTimes(*(float(np.quantile(column, _QUANTILE)) for column in zip(*map(astuple, times), strict=True)))


def _identities(device: str, rows: Path) -> Iterator[dict[str, Any]]:
    """Yield the identities kept beside rows, those of the workspace first; files of another kind are passed over."""
    for path in (*sorted((rows / device).glob("*/*.json")), *sorted((state_folder() / "identities").glob("*.json"))):
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(found, dict) and {"nominal_compute_us", "nominal_bandwidth_us"} <= found.keys():
            yield found
