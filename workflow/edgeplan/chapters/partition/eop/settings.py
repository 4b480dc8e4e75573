"""The section `partition.eop` of params.yaml."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from edgeplan.chapters.base import Section
from edgeplan.workloads.registry import WORKLOADS

_Count = Annotated[int, Field(ge=1, le=100_000)]
_Sizes = Annotated[tuple[_Count, ...], Field(min_length=2)]
_Share = Annotated[float, Field(gt=0, lt=1)]


class EopSettings(Section):
    """These settings say what is measured for EOP (VEE 2022).

    Attributes:
        models: swept, planned and run; names of `workloads.registry.WORKLOADS`.
        shares: of the CPU, at which every step is split over every dimension that it can be split over.
        sweep_runs: inferences at each share.
        runs: inferences of each plan, in each of `rounds` new sessions.
        rounds: sessions of each plan, in turn with those of the others.
        margin: share of an operator's time that a split has to gain.
        batches, heights, widths: at which operators are sampled alone: items, rows (and columns) of images or matrices, and the
            three sizes of a product.
        sample_runs: of each.
        varied: whether the models of figures 9 and 10 are measured, too.
    """

    models: Annotated[tuple[str, ...], Field(min_length=1)]
    shares: Annotated[tuple[_Share, ...], Field(min_length=1)]
    sweep_runs: _Count
    runs: _Count
    rounds: _Count
    margin: Annotated[float, Field(ge=0, lt=1)]
    batches: _Sizes
    heights: _Sizes
    widths: _Sizes
    sample_runs: _Count
    varied: bool

    @model_validator(mode="after")
    def _known(self) -> Self:
        if unknown := [name for name in self.models if name not in WORKLOADS]:
            raise ValueError(f"there is no model {unknown[0]!r}; known: {', '.join(WORKLOADS)}")
        return self
