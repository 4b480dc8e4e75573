"""Devices tell a workflow engine that measures them side by side where they are, and which share a machine."""

from __future__ import annotations

from pathlib import Path

from edgeplan.devices.config import DEVICE_FOLDER, DeviceFile, load_device


def device_named(name: str, folder: Path = DEVICE_FOLDER) -> DeviceFile:
    """Read the file of a device of this workspace."""
    return load_device(folder / f"{name}.yaml")


def is_here(name: str, folder: Path = DEVICE_FOLDER) -> bool:
    """Tell whether a device is on this machine, whose cores all measuring here takes; "" is."""
    return not name or device_named(name, folder).board is None


def machine_of(name: str, folder: Path = DEVICE_FOLDER) -> str:
    """Name the physical machine of a device: its `machine`, else itself; `local` is this one.

    Devices of one machine are measured one after the other.
    """
    if is_here(name, folder):
        return "local"
    return device_named(name, folder).machine or name
