"""The section of params.yaml that the chapter reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgeplan.chapters.base import ChapterParams, DeviceName, Section


class ToySettings(Section):
    """Its own targets, and how many numbers are sorted."""

    on: list[DeviceName]
    sizes: tuple[Annotated[int, Field(ge=1)], ...]


class Params(ChapterParams):
    """What the chapter reads of params.yaml."""

    toy: ToySettings
