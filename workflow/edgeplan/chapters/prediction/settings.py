"""Declares the sections of params.yaml that the chapter on prediction reads, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from edgeplan.chapters.base import ChapterParams, DeviceName, Section
from edgeplan.graph.fusion_rules import Alignments
from edgeplan.measurement.settings import MeasurementSettings
from edgeplan.predictors.settings import TrainingSettings


class SamplingSettings(Section):
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


class FusionSettings(BaseModel):
    """Sets the thresholds and sizes of the detection of fusion rules (nn-Meter, section 4.1).

    Attributes:
        alpha: share of the cheaper operator's time that must be saved for a pair to count as fused (Inequality 1).
        confidence: a decision is clear when the saving is this many standard errors from the threshold.
        noise_floor: least standard error of a measured time, relative: what blocks near in time cannot show.
        rewritten_difference: relative difference in time from which a chain counts as run by a kernel of its own.
        material_share: a case whose cheaper operator takes less than this share of the other one's time cannot be told.
        max_rounds: a case still unclear after this many measurements is reported as undecided.
        cautious: whether the machine may be disturbed for as long as a measurement takes: what several cases share, what
            decides for whole models and savings beyond belief are measured three times, and few blocks are believed as far
            as Student's t allows. Takes a third to a half more time.
        classes: classes of channel counts that rules may tell apart.
        channels: a channel count to probe for every class.
        elements: elements of the activations probed once; large enough for an element-wise operator to be seen.
        blocks: repetitions of the operators under test in a network of small tensors.
        small_elements: elements of those small tensors.
        rows, features: size of the two-dimensional activations of fully connected layers.
        stage_seconds: what is not measured by then is undecided; 0: no limit.
        prior: shipped devices; the rules of the first with the same engine stand where timing decides nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    alpha: Annotated[float, Field(gt=0, lt=1)] = 0.5
    confidence: Annotated[float, Field(ge=1, le=10)] = 2.5
    noise_floor: Annotated[float, Field(ge=0, le=0.1)] = 0.003
    rewritten_difference: Annotated[float, Field(gt=0, lt=1)] = 0.15
    material_share: Annotated[float, Field(ge=0, lt=1)] = 0.1
    max_rounds: Annotated[int, Field(ge=1, le=10)] = 3
    cautious: bool = False
    classes: Alignments = Alignments()
    channels: dict[str, Annotated[int, Field(ge=1)]] = {"16": 16, "4": 20, "1": 18, "<4": 12, "<1": 6}
    elements: Annotated[int, Field(ge=1000)] = 200_000
    blocks: Annotated[int, Field(ge=1, le=100)] = 24
    small_elements: Annotated[int, Field(ge=16)] = 256
    rows: Annotated[int, Field(ge=1)] = 4
    features: Annotated[int, Field(ge=1)] = 64
    stage_seconds: Annotated[float, Field(ge=0, le=86400)] = 0.0
    prior: Annotated[tuple[str, ...], Field(max_length=20)] = ()

    @model_validator(mode="after")
    def _check(self) -> FusionSettings:
        for name in self.classes.names():
            if name not in self.channels or self.classes.name(self.channels[name]) != name:
                raise ValueError(f"channels must give a channel count of class {name}")
        return self


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
