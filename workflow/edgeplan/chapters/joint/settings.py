"""The `joint` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.engines.registry import SETTINGS
from edgeplan.workloads.registry import WORKLOADS


class JointSettings(Section):
    """Settings of the chapter name what is measured.

    Attributes:
        devices: devices whose engine is the package's own runtime.
        models: names of `workloads.registry.WORKLOADS`.
        share: of what ONNX Runtime takes over idle, the budget of each model.
        beside: settings with mapped weights that start within the same budget.
        turns: fresh processes of each way, one way after the other.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
    """

    devices: Annotated[list[DeviceName], Field(min_length=1)]
    models: Annotated[tuple[str, ...], Field(min_length=1)]
    share: Annotated[float, Field(gt=0, le=1)]
    beside: tuple[str, ...]
    turns: Annotated[int, Field(ge=1, le=100)]
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 600.0

    @model_validator(mode="after")
    def _known(self) -> Self:
        for what, names, known in (("model", self.models, WORKLOADS), ("setting", self.beside, SETTINGS)):
            if unknown := [name for name in names if name not in known]:
                raise ValueError(f"there is no {what} {unknown[0]!r}; known: {', '.join(known)}")
        return self


class JointParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    joint: JointSettings
