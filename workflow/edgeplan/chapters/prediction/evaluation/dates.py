"""Tells when what a table rests on was measured: a range of dates for each measuring stage."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.kit import Spec
from edgeplan.reporting.metrics import FloatArray
from edgeplan.support.frames import read_parquet

#: The measuring stages, in the order in which they are named.
STAGES = ("fusion", "sampling", "calibration", "truth")
#: Those that predictions of the evaluated models rest on; their intervals rest on all.
PREDICTED = ("fusion", "sampling", "calibration", "truth")
#: What is written for a table that rests on no measurement, and for a stage whose rows do not tell.
NOTHING, NOT_RECORDED = "nothing", "not recorded"
_BETWEEN = "; "

#: Part of `Evidence` -> the stages whose measurements it holds; predictions rest on the rules and on the sampled kernels.
_RESTS_ON: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "prior": (),
        "test_cases": ("fusion",),
        "verification": ("fusion",),
        "resnet18_kernels": ("fusion",),
        "kernels": ("sampling",),
        "sampling": ("sampling",),
        "quality": ("sampling",),
        "conv_fusion": ("sampling",),
        "sweeps": ("sampling",),
        "breakdown": ("fusion", "sampling"),
        "zoo": ("truth",),
        "environment": ("truth",),
        "calibration": ("calibration",),
        "samplers": PREDICTED,
        "models": PREDICTED,
        "transfer": PREDICTED,
    }
)


def ranges(evidence: Evidence, rows: Path, key: str) -> dict[str, str]:
    """Return when the rows behind the evidence were measured, by stage; a stage that does not tell is left out.

    Args:
        evidence: of the device.
        rows: its row stores, data/rows/<device>.
        key: key of its rows (engine, version, settings, machine), as fusion.rules says it; "" where rules were taken: of any.

    Returns:
        Stage -> "from to UTC", to the minute, of the starts of blocks: for `fusion` of all rows of the key, for `sampling` of
        those that the training table holds, for `calibration` and `truth` of the models.

    Raises:
        FormatError: a file of rows cannot be read.
    """
    kept = set(evidence.kernels["subject"])
    times = {"fusion": _times(rows / "fusion", key, None), "sampling": _times(rows / "sampling", key, kept)}
    times["calibration"] = evidence.calibration["measured_at_s"].to_numpy(float)
    first = evidence.models["measured_at_s"].to_numpy(float)
    times["truth"] = np.concatenate([first, first + evidence.models["repeat_gap_s"].fillna(0.0).to_numpy(float)])
    return {stage: f"{_text(found.min())} to {_text(found.max())} UTC" for stage, found in times.items() if found.size}


def _times(folder: Path, key: str, subjects: set[str] | None) -> FloatArray:
    """Return when the blocks of stored rows began, seconds since the epoch (blocks,): of all subjects, or of some."""
    found = []
    for path in sorted(folder.glob(f"{key or '*'}-*.parquet")):
        table = read_parquet(path, "subject", "measured_at")
        chosen = table if subjects is None else table[table["subject"].isin(subjects)]
        found += list(chosen["measured_at"])
    return np.concatenate([np.empty(0), *found])


def _text(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def measured(shown: Spec[Evidence, Any], found: Mapping[str, str]) -> str:
    """Return the date ranges of the stages that a table rests on, as text.

    Args:
        shown: the table.
        found: range by stage, see `ranges`.
    """
    rests_on = {stage for need in shown.needs for stage in _RESTS_ON[need.partition(".")[0]]}
    return _joined({stage: found.get(stage, NOT_RECORDED) for stage in STAGES if stage in rests_on}) or NOTHING


def of_device(device: str, found: Mapping[str, str], stages: Iterable[str]) -> str:
    """Return the date ranges of some stages of a device, named after it, as text."""
    return _joined({f"{device} {stage}": found.get(stage, NOT_RECORDED) for stage in stages})


def _joined(found: Mapping[str, str]) -> str:
    return _BETWEEN.join(f"{stage} {text}" for stage, text in found.items())


def together(texts: Iterable[str]) -> str:
    """Join the dates of several tables of one device as one text."""
    said = dict(part.split(" ", 1) for text in dict.fromkeys(texts) if text != NOTHING for part in text.split(_BETWEEN))
    return _joined({stage: said[stage] for stage in dict.fromkeys((*STAGES, *said)) if stage in said})
