"""Declares the sections of params.yaml that the chapter on prediction reads, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.chapters.prediction.fusion.settings import FusionSettings
from edgeplan.chapters.prediction.sampling.settings import SamplingSettings
from edgeplan.measurement.settings import MeasurementSettings
from edgeplan.predictors.settings import TrainingSettings


class ZooSettings(Section):
    """Settings of the zoo choose the evaluated models.

    Attributes:
        variants_per_family: evaluated variants of each of the 13 families.
        seed: draws the variants, and nothing else: another one gives models that no choice can have been made by.
    """

    variants_per_family: Annotated[int, Field(ge=1, le=2000)]
    seed: Annotated[int, Field(ge=0, le=2**31)]


class TruthSettings(Section):
    """Settings of the truth say how whole models are measured.

    Attributes:
        repeat: devices on which every model is measured a second time, for the repeatability ceiling.
        graded: where they are not, models measured a second time behind the others, at least two minutes after the first, from
            which the machine's grade is computed.
        stage_seconds: models that are not measured by then are left out; 0: no limit.
        min_gap_seconds: least time between the passes that the first blocks of a model belong to, in place of that of
            `measurement`: a model that is met at one moment only is measured no better by more blocks. It is no part of the key
            of rows, so stored ones are not measured again.
    """

    repeat: list[DeviceName]
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]
    graded: Annotated[int, Field(ge=0, le=100)]
    min_gap_seconds: Annotated[float, Field(ge=0, le=600)]


class CalibrationSettings(Section):
    """Sets the whole models on which the intervals of predictions are calibrated.

    Attributes:
        variants_per_family: variants of each of the 13 families, none of them evaluated, and exported models of each.
        seed: draws them; not that of the zoo.
        stage_seconds: models that are not measured by then are left out; 0: no limit.
    """

    variants_per_family: Annotated[int, Field(ge=1, le=2000)]
    seed: Annotated[int, Field(ge=0, le=2**31)]
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]


class EvaluationSettings(Section):
    """Settings of the evaluation choose its computations besides the tables.

    Attributes:
        batch_models: models whose predictions from kernel tables are timed; the paper's dataset has 26,000.
        speed_runs: timed repetitions of `edgeplan predict`; 0 leaves the timings out.
    """

    batch_models: Annotated[int, Field(ge=0, le=26000)]
    speed_runs: Annotated[int, Field(ge=0, le=100)]


class UnseenSettings(Section):
    """Names the devices that predict architectures outside the zoo's families (`edgeplan.zoo.unseen`).

    Attributes:
        devices: devices on which they are measured and predicted.
    """

    devices: list[DeviceName]


class TransferSettings(Section):
    """Names the devices of Table 11: predictors of `source` are tried on `target`."""

    source: DeviceName
    target: DeviceName


class PredictionParams(ChapterParams):
    """The chapter reads these sections of params.yaml."""

    zoo: ZooSettings
    measurement: MeasurementSettings
    fusion: FusionSettings
    sampling: SamplingSettings
    training: TrainingSettings
    truth: TruthSettings
    calibration: CalibrationSettings
    evaluation: EvaluationSettings
    unseen: UnseenSettings
    transfer: TransferSettings

    @field_validator("calibration")
    @classmethod
    def _evaluated_models_calibrate_nothing(cls, value: CalibrationSettings, known: ValidationInfo) -> CalibrationSettings:
        if "zoo" in known.data and value.seed == known.data["zoo"].seed:
            raise ValueError("seed must not be zoo.seed, which draws the evaluated models")
        return value
