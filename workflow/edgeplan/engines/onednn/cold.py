"""Cold starts of our own runtime: a plan, made and built elsewhere, executed as it was planned."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.description import UnsupportedError
from edgeplan.runtime.native_session import NativeSession


def prepare(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> None:
    """Refuse: plans are handed over ready (`prepared_plan`)."""
    del model, inputs, folder, threads
    raise UnsupportedError("plans are made by `edgeplan plan cold-start` and handed over ready (prepared)")


def require_as_planned(session: NativeSession) -> None:
    """Require that a first run was the one of the plan: UnsupportedError where weights were held to their checksums."""
    if session.fact("checked"):
        raise UnsupportedError("the stamp of the weight cache is not that of the plan: its weights were checked")
