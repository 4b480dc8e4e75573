"""A pair of a test's workspace, opened, or the test is skipped where no OpenCL is."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from partition_frames import trained

from edgeplan.chapters.partition.learning.predictors import save
from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError
from edgeplan.support.machine import fingerprint

PAIR = "pair-pocl"
_ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def opened_here(workspace: Path) -> Iterator[Opened]:
    """Open `pair-pocl` of a workspace, as for measuring."""
    try:
        with opened(load_pair(workspace / f"config/pairs/{PAIR}.yaml"), profiling=True) as found:
            yield found
    except DeviceError as error:
        if "no OpenCL platform" in error.what:
            pytest.skip(error.what)
        raise


def write_workspace(folder: Path) -> Path:
    """Write the shipped devices, and a pair of two cores that this process may use."""
    shutil.copytree(_ROOT / "config/devices", folder / "config/devices")
    document = yaml.safe_load((_ROOT / f"config/pairs/{PAIR}.yaml").read_text())
    for side, core in zip(document["processors"], sorted(os.sched_getaffinity(0)), strict=False):
        side["cores"] = [core]
    (folder / "config/pairs").mkdir()
    (folder / f"config/pairs/{PAIR}.yaml").write_text(yaml.safe_dump(document))
    return folder


def save_predictors(workspace: Path) -> Path:
    """Save those of synthetic laws, as if they were measured on the pair of a workspace."""
    found = trained().predictors
    with opened_here(workspace) as pair:
        versions, numbers = pair.versions, pair.numbers
    known = {"pair": PAIR, "fingerprint": fingerprint(), "versions": versions, "numbers": numbers}
    card = found.card.model_copy(update={**known, "fixed_share": {"linear": 0.5, "conv": 0.5}})
    folder = workspace / f"results/{PAIR}/partition/predictors"
    save(replace(found, card=card), folder)
    return folder
