"""Declares the `sampling` section of params.yaml."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field


class SamplingSettings(BaseModel):
    """Says which nodes are measured, and how many.

    Attributes:
        exports_per_family: models of each family of `edgeplan.workloads.exports`, whose nodes are learnt from.
        budget_seconds: measuring time of the adaptive sampler; operators by themselves get a tenth as much.
        initial_share: share of the budget spent on the initial sample (N in Algorithm 2).
        rounds: most adaptive rounds.
        error_threshold: the rounds end when the RMSPE of cross-validation falls below this (e in Algorithm 2).
        frozen_variants: variants of each family, none of which is learnt from or evaluated, whose nodes only report.
        frozen_kernels: most nodes of these.
        random_kernels: convolutions drawn uniformly (Table 10), as many of which are measured as take the time of the others.
        stage_seconds: the stage measures for about so long by the clock; 0: no limit.
        baselines: whether the random convolutions are measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    exports_per_family: Annotated[int, Field(ge=1, le=100)]
    budget_seconds: Annotated[float, Field(gt=0, le=86400)]
    initial_share: Annotated[float, Field(gt=0, le=1)]
    rounds: Annotated[int, Field(ge=0, le=100)]
    error_threshold: Annotated[float, Field(gt=0, lt=1)]
    frozen_variants: Annotated[int, Field(ge=1, le=1000)]
    frozen_kernels: Annotated[int, Field(ge=2, le=100000)]
    random_kernels: Annotated[int, Field(ge=2, le=100000)]
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]
    baselines: bool
