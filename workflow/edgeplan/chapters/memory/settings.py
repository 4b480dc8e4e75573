"""The `memory` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.engines.registry import SETTINGS
from edgeplan.workloads.registry import WORKLOADS

_Count = Annotated[int, Field(ge=1, le=1000)]
_Share = Annotated[float, Field(gt=0, le=1)]


class MemorySettings(Section):
    """Settings of the chapter on memory name what is measured.

    Attributes:
        devices: devices whose engine is the package's own runtime.
        models: names of `workloads.registry.WORKLOADS`.
        settings: stock settings to stand beside; the first is what shares are of. Those not installed say so in the tables.
        shares: budgets, as shares of what the first setting takes.
        threads: that compute; another processor reads.
        runs: inferences of each plan and setting.
        alternations: how often a plan and the same program with all weights in memory take turns, at most.
        slowed_model: model that is slowed by waiting awake until it takes `slowed_ratio` times as long as reading, unless it
            takes longer by itself, at the least peak that it runs in; it is run beside a busy core, too; "" leaves it out.
        slowed_beside: stock settings that the slowed plan is held to, the original engine first.
        frugal_models: models that are run by what people would pick for little memory.
        frugal_settings: those picks; "edgeplan" among them stands for our plans.
        frugal_mib: memory over idle that each is held to by the system.
        frugal_seconds: that an inference may take there.
        frugal_read_ahead_kb: KiB that are read ahead in a second round; 0 leaves it out.
        second_threads, second_shares: budgets that are run with as many computing threads besides; none leaves them out.
        ablated_share: budget at which plans run without static memory and without loading ahead; 0 leaves it out.
        adapted_model, adapted_runs: model that goes through the budgets of `shares`, inferences of each; "" leaves it out.
        halved_model, halved_shares, halved_pairs: model that is planned with weights in half their bytes, too, at which
            shares, and pairs of processes that run both kinds of plan in turns; "" leaves it out.
        offline_mb: budgets, by model, at which what planning takes is measured.
        single_layers: names of `single_layers.LAYERS`, models of one layer whose kernels and cuts are run.
        contained_share: share of what the first setting takes over idle that a plan for a total budget gets beside our idle
            process; the least total budget is measured with it; 0 leaves both out.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    devices: Annotated[list[DeviceName], Field(min_length=1)]
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    settings: Annotated[tuple[str, ...], Field(min_length=1)]
    shares: Annotated[tuple[_Share, ...], Field(min_length=1)]
    threads: _Count
    runs: Annotated[int, Field(ge=2, le=1000)]
    slowed_model: str = ""
    slowed_ratio: Annotated[float, Field(gt=0, le=100)] = 3.0
    alternations: Annotated[int, Field(ge=1, le=100)] = 15
    slowed_beside: tuple[str, ...] = ()
    frugal_models: tuple[str, ...] = ()
    frugal_settings: tuple[str, ...] = ()
    frugal_mib: tuple[Annotated[float, Field(gt=0)], ...] = ()
    frugal_seconds: Annotated[float, Field(gt=0)] = 10.0
    frugal_read_ahead_kb: Annotated[int, Field(ge=0)] = 0
    second_threads: _Count = 2
    second_shares: tuple[_Share, ...] = ()
    ablated_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    adapted_model: str = ""
    adapted_runs: Annotated[int, Field(ge=2, le=1000)] = 32
    halved_model: str = ""
    halved_shares: tuple[_Share, ...] = (0.05, 0.1)
    halved_pairs: _Count = 3
    offline_mb: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    single_layers: tuple[str, ...] = ()
    contained_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        alone = (self.slowed_model, self.adapted_model, self.halved_model)
        for what, names, known in (
            ("model", [*self.models, *self.offline_mb, *self.frugal_models, *filter(None, alone)], WORKLOADS),
            ("setting", [*self.settings, *self.slowed_beside, *self.frugal_settings], SETTINGS),
        ):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")
        if self.halved_model and self.halved_model not in self.models:
            raise ValueError(f"halved_model {self.halved_model!r} is none of the models: shares are of what it takes there")
        return self


class MemoryParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    memory: MemorySettings
