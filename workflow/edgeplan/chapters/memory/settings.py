"""The `memory` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.engines.registry import SETTINGS
from edgeplan.workloads.registry import WORKLOADS
from edgeplan.zoo import prior_models

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
        slowed_model: model that is slowed by waiting awake until it takes `slowed_ratio` times as long as reading, unless it
            takes longer by itself, at the least peak that it runs in; "" leaves it out.
        slowed_pairs: interleaved pairs of it and of the same with all weights in memory.
        limited_model, limited_mib: model and memory over idle that the frugal setting, the last one, is held to by the system
            beside our plan; "" leaves it out.
        second_threads, second_shares: budgets that are run with as many computing threads besides; none leaves them out.
        sliced_model: model of which each way to cut it is profiled; "" leaves it out.
        ablated_share: budget at which plans run without static memory and without loading ahead; 0 leaves it out.
        adapted_model, adapted_runs: model that goes through the budgets of `shares`, inferences of each; "" leaves it out.
        offline_mb: budgets, by model, at which what planning takes is measured.
        layout_models: names of the zoo or of workloads whose activations are laid out by all that lay out.
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
    slowed_pairs: _Count = 20
    limited_model: str = ""
    limited_mib: Annotated[float, Field(gt=0)] = 45.0
    second_threads: _Count = 2
    second_shares: tuple[_Share, ...] = ()
    sliced_model: str = ""
    ablated_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    adapted_model: str = ""
    adapted_runs: Annotated[int, Field(ge=2, le=1000)] = 32
    offline_mb: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    layout_models: tuple[str, ...] = ()
    contained_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        alone = (self.slowed_model, self.limited_model, self.sliced_model, self.adapted_model)
        for what, names, known in (
            ("model", [*self.models, *self.offline_mb, *filter(None, alone)], WORKLOADS),
            ("model", self.layout_models, {**WORKLOADS, **prior_models()}),
            ("setting", self.settings, SETTINGS),
        ):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")
        return self


class MemoryParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    memory: MemorySettings
