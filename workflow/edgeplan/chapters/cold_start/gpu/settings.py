"""Declares the `cold_gpu` section of params.yaml: cold starts on GPUs."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import DeviceName, Section
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL
from edgeplan.engines.registry import SETTINGS
from edgeplan.measurement.process.job import State
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

_Count = Annotated[int, Field(ge=1, le=1000)]


class GpuStartSettings(Section):
    """Settings say what is measured of cold starts on GPUs.

    Attributes:
        devices: devices of the engines opencl and cuda.
        models: names of `zoo.cold_start_models`; one with steps that a device has no kernels for says so in the tables.
        plans: plans to make and start beside the optimal one, names of `planners.gpu.GPU_PLANNERS`.
        settings: stock settings on the same GPU, names of `engines.registry`; those that cannot run there say so.
        states: page cache evicted, cached or both.
        repeats: fresh processes for each plan and state.
        compiled_repeats: the same, if fewer, of plans that compile at every start.
        warm_runs: inferences after the first in each process.
        gap, time_limit_s: the optimal planner's relative gap to prove, and its time limit.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    devices: list[DeviceName]
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    plans: tuple[str, ...]
    settings: tuple[str, ...]
    states: Annotated[tuple[State, ...], Field(min_length=1)]
    repeats: _Count
    compiled_repeats: _Count
    warm_runs: Annotated[int, Field(ge=1, le=1000)]
    gap: Annotated[float, Field(ge=0, lt=1)]
    time_limit_s: Annotated[float, Field(gt=0, le=3600)]
    lock_timeout_seconds: Annotated[float, Field(ge=0, le=86400)]

    @property
    def planners(self) -> tuple[str, ...]:
        """Return the planners of all plans, the optimal one first."""
        return (OPTIMAL, *(name for name in self.plans if name != OPTIMAL))

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        named = (("models", self.models, COLD_START_MODELS), ("plans", self.plans, GPU_PLANNERS))
        for field, names, known in (*named, ("settings", self.settings, SETTINGS)):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"{field}: there is no {unknown[0]!r}, only {', '.join(known)}")
            if len(set(names)) < len(names):
                raise ValueError(f"{field}: a value stands there twice")
        return self
