"""Declares the `training` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class TrainingSettings(BaseModel):
    """Fixes the search of parameters and the folds of a training.

    Attributes:
        trials: Optuna trials of a kind with many rows; kinds with few rows take regularised defaults.
        folds: folds of the cross-validation, grouped by model.
        interval: nominal coverage of the intervals.
        seeds: the first seeds folds and tuning; models of all seeds are averaged. The pipeline keeps their number and derives
            their values from its own seed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: Annotated[int, Field(ge=0, le=1000)] = 30
    folds: Annotated[int, Field(ge=2, le=20)] = 5
    interval: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    seeds: Annotated[tuple[int, ...], Field(min_length=1, max_length=10)] = (0,)

    @model_validator(mode="before")
    @classmethod
    def _no_prior(cls, values: Any) -> Any:
        if isinstance(values, dict) and "prior" in values:
            raise ValueError("prior is removed; `edgeplan device adapt` learns a new device from others: leave it out")
        return values
