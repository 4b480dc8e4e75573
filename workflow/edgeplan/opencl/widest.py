"""Finds the widest vectors that a driver computes right with, asked in a process of its own and kept for that driver.

A width that a device reports may be one that its compiler cannot handle: PoCL 3.0 (LLVM 14) reports 16 floats on AVX-512, and
compiles kernels of that width until its memory is used up, or ends the process.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from edgeplan.errors import DeviceError, StoreError
from edgeplan.opencl.building import remembered, sources_digest
from edgeplan.opencl.platforms import OpenclOptions, describe, identity
from edgeplan.support.files import write_text
from edgeplan.support.workers import ColdRunError, work_apart

#: It runs a model of every kernel with vectors of one width (`engines.opencl.trial`).
_TRIAL = "edgeplan.engines.opencl.trial"
#: For the whole process; what ends a compiler that does not end is its processor time, which other work does not use up.
_TIMEOUT_SECONDS = 900.0


class TrialJob(msgspec.Struct, forbid_unknown_fields=True):
    """A trial job names a device by its options, and the width of vectors in them."""

    device: dict[str, str | int | tuple[int, ...]]


class TrialResult(msgspec.Struct, forbid_unknown_fields=True):
    """A trial result says why a width is not to be used; it is empty where the width works."""

    problem: str = ""


def widest(device: Any, options: OpenclOptions, widths: Sequence[int], block: int) -> int:
    """Return the widest vectors with which the kernels of a device compute what they should.

    Args:
        device: device of pyopencl.
        options: options that the device was found by.
        widths: floats of a vector that may be tried.
        block: channels of a block of activations, which is part of what is compiled.

    Returns:
        Floats of a vector.
    """
    return _widest(identity(device), describe(device), options, tuple(sorted(widths, reverse=True)), block)


@cache
def _widest(driver: str, name: str, options: OpenclOptions, widths: tuple[int, ...], block: int) -> int:
    kept = _kept(driver, widths, block)
    if kept is not None:
        with contextlib.suppress(OSError, ValueError):
            known = int(kept.read_text(encoding="ascii"))
            if known in widths:
                return known
    problem = ""
    for width in widths:
        job = TrialJob(device=asdict(options) | {"vector": width})
        try:
            problem = work_apart(_TRIAL, job, TrialResult, f"vectors of {width} floats", _TIMEOUT_SECONDS).problem
        except ColdRunError as error:
            problem = error.reason
        if not problem:
            if kept is not None:
                with contextlib.suppress(StoreError):  # it is asked again
                    write_text(kept, str(width))
            return width
    raise DeviceError(
        f"no OpenCL kernel works on this driver: {problem}", where=name, next_step="install another version of the driver"
    )


def _kept(driver: str, widths: tuple[int, ...], block: int) -> Path | None:
    """Return the file where the answer is kept, for one driver on one processor and the present kernels; None: nowhere."""
    folder = remembered()
    content = "\0".join((driver, sources_digest(), *map(str, (*widths, block))))
    return None if folder is None else folder / f"{hashlib.sha256(content.encode()).hexdigest()}.width"
