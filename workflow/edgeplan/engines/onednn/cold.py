"""Opens a plan folder for a cold start of our own runtime: a plan, made and built elsewhere, executed as it was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from edgeplan.engines.description import UnsupportedError
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl


def prepare(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> None:
    """Refuse: plans are handed over ready (`prepared_plan`)."""
    del model, inputs, folder, threads
    raise UnsupportedError("plans are made by `edgeplan plan cold-start` and handed over ready (prepared)")


def open_folder(dnnl: Dnnl, folder: Path, threads: int, cores: Sequence[int], machine: str, **how: bool) -> ColdSession:
    """Open a plan folder on the first cores; further ones only prepare. For `how` see `ColdSession`."""
    executing, preparing = cores[:threads], cores[threads:]
    return ColdSession(dnnl, folder, threads=threads, machine=machine, cores=executing, little=preparing, **how)


def require_as_planned(session: ColdSession) -> None:
    """Require that a first run was the one of the plan.

    Raises:
        UnsupportedError: the weight cache was of no use, or the model was hashed before it began.
    """
    if problem := session.cache_problem:
        raise UnsupportedError(f"the weight cache {problem}")
    if hashed := session.hashed:
        raise UnsupportedError(f"the stamp of {Path(hashed[0]).name} is not that of the plan: it was hashed")
