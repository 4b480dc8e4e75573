"""Chooses the measurer of a device: this machine, or a board."""

from __future__ import annotations

from edgeplan.devices.config import DeviceFile
from edgeplan.measurement.board.client import BoardMeasurer
from edgeplan.measurement.local import Local
from edgeplan.measurement.measurer import Measurer


def measurer_of(device: DeviceFile) -> Measurer:
    """Make the measurer of a device; a board is reached when it is first asked."""
    return Local(device) if device.board is None else BoardMeasurer(device)
