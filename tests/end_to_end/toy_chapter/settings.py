"""The section of params.yaml that the chapter reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgeplan.chapters.base import ChapterParams, DeviceName, Section


class ToySettings(Section):
    """Attributes: `on`: its own targets; `sizes`: how many numbers are sorted; `lanes`: side by side."""

    on: list[DeviceName]
    sizes: tuple[Annotated[int, Field(ge=1)], ...]
    lanes: Annotated[int, Field(ge=1)]


class Params(ChapterParams):
    """What the chapter reads of params.yaml."""

    toy: ToySettings
