"""Declares the `sampling` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["in_situ", "isolated"]


class SamplingSettings(BaseModel):
    """Says which kernels are measured, and how many.

    Attributes:
        modes: measuring mode of each engine.
        budget_seconds: measuring time of the adaptive sampler, and of each baseline.
        initial_share: share of the budget spent on the initial sample from the prior (N in Algorithm 2).
        published_share: share of the initial sample whose channels are those of published models, not scaled.
        rounds: most adaptive rounds.
        error_threshold: the rounds end when the RMSPE on the growing test set, beyond what labels may be off by, falls below
            this (e in Algorithm 2).
        selection: which carriers a round measures: all around the largest `errors`, as they are drawn (Algorithm 2 as written),
            or, of many drawn there and from the prior, those on which a committee of models is in `disagreement`.
        hard_share: share of the test set with the largest errors that a round samples around.
        fine_grained: new configurations around each of them (M in Algorithm 2).
        test_share: share of each round's rows that joins the growing test set (section 5.2: 20 %).
        frozen_carriers: carriers of the separate set that only reports.
        carrier_kernels: kernels packed into one carrier, about.
        network_gmacs: networks of the prior of at most so many 10^9 multiply-adds are measured too, kernel by kernel as they
            stand; 0: none. In small networks of many small kernels, caches hold more than in any carrier. None is evaluated.
        beyond_seconds: by engine, measuring time of convolutions beyond those of the prior's walks: large, grouped and dilated
            ones (`carriers_large_grouped.py`), where kernels are measured in carriers; 0 where it is not named.
        singles: models of each operator that is measured in one of its own (`singles.py`): all that is known of kinds that no
            carrier shows; 0: none. Their rows have ids of their own: all others stay.
        without_singles: devices that none of these is measured on, since their rows are older.
        stage_seconds: the stage measures for about so long by the clock; fixed sets are cut short and baselines left out beyond
            it; 0: no limit.
        mode_seconds: measuring time of kernels alone beside those in carriers: the frozen set holds none of their
            configurations; 0 leaves it out.
        baselines: whether the uniform and the prior baselines are measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    modes: dict[str, Mode]
    budget_seconds: Annotated[float, Field(gt=0, le=86400)]
    initial_share: Annotated[float, Field(gt=0, le=1)]
    published_share: Annotated[float, Field(ge=0, lt=1)]
    rounds: Annotated[int, Field(ge=0, le=100)]
    error_threshold: Annotated[float, Field(gt=0, lt=1)]
    selection: Literal["errors", "disagreement"]
    hard_share: Annotated[float, Field(gt=0, le=1)]
    fine_grained: Annotated[int, Field(ge=1, le=1000)]
    test_share: Annotated[float, Field(gt=0, lt=1)]
    frozen_carriers: Annotated[int, Field(ge=2, le=100000)]
    carrier_kernels: Annotated[int, Field(ge=2, le=100)]
    network_gmacs: Annotated[float, Field(ge=0, le=1000)]
    beyond_seconds: dict[str, Annotated[float, Field(ge=0, le=86400)]]
    singles: Annotated[int, Field(ge=0, le=1000)] = 0
    without_singles: list[str] = Field(default_factory=list)
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]
    mode_seconds: Annotated[float, Field(ge=0, le=86400)]
    baselines: bool

    def singles_on(self, device: str) -> int:
        """Return how many models of each operator are measured on a device."""
        return 0 if device in self.without_singles else self.singles
