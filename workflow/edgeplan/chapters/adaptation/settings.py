"""Declares the `adaptation` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from edgeplan.chapters.base import ChapterParams, DeviceName, Section


class AdaptationSettings(Section):
    """Settings of the ladder of budgets say which devices, budgets and draws are compared.

    Attributes:
        devices: devices of this workspace whose measurements are put into `data/transfer`, beside those measured elsewhere.
        reports: the folder of `results` that the ladder is shown in, or none: then it is not computed.
        budgets_seconds: measuring time of each rung; a last one takes all that was measured.
        seeds: independent draws of each rung.
        models_share: share of the seconds that goes to small whole models, which factors and intervals are taken from.
        start_seconds: what an engine's start and the quiet times of the references take before the first batch.
    """

    devices: list[DeviceName]
    reports: Annotated[list[Literal["transfer"]], Field(max_length=1)]
    budgets_seconds: Annotated[list[Annotated[float, Field(gt=0, le=3600)]], Field(min_length=1, max_length=20)]
    seeds: Annotated[int, Field(ge=1, le=100)]
    models_share: Annotated[float, Field(gt=0, lt=1)]
    start_seconds: Annotated[float, Field(ge=0, le=60)]


class AdaptationParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    adaptation: AdaptationSettings
