"""Declares the `training` section of params.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from edgeplan.predictors.features import FIRST_WORK, WORK_VERSION
from edgeplan.predictors.launches import checked_numbers
from edgeplan.workspace import DEVICE_NAME


class TrainingSettings(BaseModel):
    """Fixes the search of parameters and the folds of a training.

    Attributes:
        trials: Optuna trials of a kind with many rows; kinds with few rows take regularised defaults.
        folds: folds of the cross-validation, grouped by measured subject.
        min_rows_per_implementation: an implementation with fewer rows is left to the predictor of its kind.
        interval: nominal coverage of the intervals.
        seeds: the first seeds folds and tuning; models of all seeds are averaged. The pipeline keeps their number and derives
            their values from its own seed.
        dispatch_numbers: of a device whose engine dispatches kernels of its own: the numbers that their launches follow from
            (`Processor.numbers`), of which predictors then learn, too. None: launches are not looked at.
        without_work: devices whose predictors learn from the work of recurrent layers, transposed convolutions and products of
            activations as little as their shipped ones do.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    trials: Annotated[int, Field(ge=0, le=1000)] = 30
    folds: Annotated[int, Field(ge=2, le=20)] = 5
    min_rows_per_implementation: Annotated[int, Field(ge=2)] = 30
    interval: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    seeds: Annotated[tuple[int, ...], Field(min_length=1, max_length=10)] = (0,)
    dispatch_numbers: dict[str, int] = {}
    without_work: Annotated[tuple[Annotated[str, Field(pattern=DEVICE_NAME.pattern)], ...], Field(max_length=20)] = ()

    def work_on(self, device: str) -> int:
        """Return how the features of a device's kernels count work."""
        return FIRST_WORK if device in self.without_work else WORK_VERSION

    @model_validator(mode="before")
    @classmethod
    def _no_prior(cls, values: Any) -> Any:
        if isinstance(values, dict) and "prior" in values:
            raise ValueError("prior is removed; `edgeplan device adapt` learns a new device from others: leave it out")
        return values

    @field_validator("dispatch_numbers")
    @classmethod
    def _of_a_device(cls, numbers: dict[str, int]) -> dict[str, int]:
        if numbers:
            checked_numbers(numbers)
        return numbers
