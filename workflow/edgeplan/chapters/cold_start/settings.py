"""Declares the sections `cold_start` and `cold_gpu` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL
from edgeplan.engines.registry import SETTINGS
from edgeplan.measurement.process.job import State
from edgeplan.support.store import Protocol
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

#: Cold starts on GPUs. Since 3 weights go up in one go, and kernels are one program; since 4 stock engines start alone.
GPU_PROTOCOL = Protocol("cold-gpu/4", ("cold-gpu/3", "cold-gpu/1"))
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


#: Plans beside the optimal one, which is always made.
PlanName = Literal["evicted", "nnv12", "warm", "K", "K+C", "predicted", "continuous", "asymmetric", "asymmetric-nnv12"]


class ColdStartSettings(Section):
    """Settings say what the chapter on cold starts measures.

    Attributes:
        devices: devices whose engine is the package's own runtime.
        models: names of `zoo.cold_start_models`.
        settings: stock settings to stand beside, names of `engines.registry`; those not installed say so in the tables.
        threads: thread counts each setting is tried with, our own too; the largest is "all cores".
        states: page cache evicted, cached or both.
        repeats: fresh processes for each combination.
        further_repeats: the same, if fewer, of plans for an asymmetric chip, and under load.
        warm_runs: runs after the cold one in each process; 4 are needed for Figure 14.
        plans: plans to execute beside the optimal one: for an evicted page cache, Algorithm 1,
            the ablation (warm, K, K+C), from predicted costs, for continuous inference, and on an asymmetric chip stood for by
            waiting.
        little_ratio: on that chip a preparation takes this many times as long on the little core.
        gap, time_limit_s: the optimal planner's relative gap to prove, and its time limit for a model.
        profile_blocks, profile_warm_runs: samples of every candidate, and executions after the first in each.
        profile_max_noisy_share: where noise is refused, a model is not profiled while more than this share of the rounds is
            disturbed by other work.
        on_noise: "keep" measures on a busy machine, too, and states the noise; "refuse" waits for quiet moments, and stores
            nothing of a model for which there were too few.
        budget_seconds: by the clock, of the whole stage; 0 is unbounded. With a budget profiles are not thorough, models that
            are not profiled within their share are left out, and beyond it each run is made once, without waiting. What was
            left out is in the notes, with its reason.
        checked_choices: outputs are compared with the k-th candidate in every step for k up to this; 0: for all k.
        load_percents: background loads on one core; empty leaves Figure 11 out.
        run_timeout_seconds: bound on one process.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    devices: Annotated[list[DeviceName], Field(min_length=1)]
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    settings: tuple[str, ...]
    threads: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)]
    states: Annotated[tuple[State, ...], Field(min_length=1)]
    repeats: _Count
    further_repeats: _Count
    warm_runs: Annotated[int, Field(ge=0, le=1000)]
    plans: tuple[PlanName, ...]
    little_ratio: Annotated[float, Field(gt=1, le=100)]
    gap: Annotated[float, Field(ge=0, lt=1)]
    time_limit_s: Annotated[float, Field(gt=0, le=3600)]
    profile_blocks: Annotated[int, Field(ge=2, le=50)]
    profile_warm_runs: Annotated[int, Field(ge=1, le=100)]
    profile_max_noisy_share: Annotated[float, Field(ge=0, le=1)]
    on_noise: Literal["keep", "refuse"] = "keep"
    budget_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0
    checked_choices: Annotated[int, Field(ge=0, le=100)]
    load_percents: tuple[Annotated[int, Field(ge=0, le=100)], ...]
    run_timeout_seconds: Annotated[float, Field(gt=0, le=3600)]
    lock_timeout_seconds: Annotated[float, Field(ge=0, le=86400)]

    @property
    def fewer_repeats(self) -> int:
        """Return how many fresh processes run each combination of plans for an asymmetric chip and under load."""
        return min(self.repeats, self.further_repeats)

    @model_validator(mode="after")
    def _known_names(self) -> Self:
        for field, names, known in (("models", self.models, COLD_START_MODELS), ("settings", self.settings, SETTINGS)):
            unknown = [name for name in names if name not in known]
            if unknown:
                raise ValueError(f"{field}: there is no {unknown[0]!r}, only {', '.join(known)}")
        for field in ("models", "settings", "threads", "states", "plans", "load_percents"):
            values = getattr(self, field)
            if len(set(values)) < len(values):
                raise ValueError(f"{field}: a value stands there twice")
        if [name for name in self.settings if not SETTINGS[name].stock]:
            raise ValueError("settings: stock settings only, our own is always measured")
        if self.load_percents and 0 not in self.load_percents:
            raise ValueError("load_percents: 0 must be among them, the others are held against it")
        return self


class ColdStartParams(ChapterParams):
    """These params are those that the chapter reads of params.yaml."""

    cold_start: ColdStartSettings
    cold_gpu: GpuStartSettings
