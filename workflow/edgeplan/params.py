"""The schema of params.yaml: every setting, with its bounds. A misspelt key or a value out of range is named in the error."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from edgeplan.cold.settings import ColdStartSettings
from edgeplan.errors import ParamsError
from edgeplan.files import read_yaml
from edgeplan.fusion.settings import FusionSettings
from edgeplan.measurement.settings import MeasurementSettings
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.sampling.settings import SamplingSettings

_Device = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ZooSettings(_Section):
    """The evaluated models.

    Attributes:
        variants_per_family: evaluated variants of each of the 13 families.
        seed: draws the variants, and nothing else: another one gives models that no choice can have been made by.
    """

    variants_per_family: Annotated[int, Field(ge=1, le=2000)]
    seed: Annotated[int, Field(ge=0, le=2**31)]


class TruthSettings(_Section):
    """How whole models are measured.

    Attributes:
        repeat: devices on which every model is measured a second time, for the repeatability ceiling.
        graded: where they are not, models measured a second time behind the others, at least two minutes after the first, from
            which the machine's grade is computed.
        stage_seconds: models that are not measured by then are left out; 0: no limit.
        min_gap_seconds: least time between the passes that the first blocks of a model belong to, in place of that of
            `measurement`: a model that is met at one moment only is measured no better by more blocks. It is no part of the key
            of rows, so stored ones are not measured again; `table_truth` says how far apart they lie.
    """

    repeat: list[_Device]
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]
    graded: Annotated[int, Field(ge=0, le=100)]
    min_gap_seconds: Annotated[float, Field(ge=0, le=600)]


class CalibrationSettings(_Section):
    """The whole models on which the intervals of predictions are calibrated.

    Attributes:
        variants_per_family: variants of each of the 13 families; none is evaluated.
        seed: draws them; not that of the zoo.
        stage_seconds: models that are not measured by then are left out; 0: no limit.
    """

    variants_per_family: Annotated[int, Field(ge=1, le=2000)]
    seed: Annotated[int, Field(ge=0, le=2**31)]
    stage_seconds: Annotated[float, Field(ge=0, le=86400)]


class EvaluationSettings(_Section):
    """What evaluation computes besides the tables.

    Attributes:
        batch_models: models whose predictions from kernel tables are timed; the paper's dataset has 26,000.
        speed_runs: timed repetitions of `edgeplan predict`; 0 leaves the timings out.
    """

    batch_models: Annotated[int, Field(ge=0, le=26000)]
    speed_runs: Annotated[int, Field(ge=0, le=100)]


class UnseenSettings(_Section):
    """The architectures outside the zoo's families (`edgeplan.zoo.unseen`).

    Attributes:
        devices: devices on which they are measured and predicted.
    """

    devices: list[_Device]


class TransferSettings(_Section):
    """Attributes: `source`, `target`: predictors of one device are tried on the other (Table 11)."""

    source: _Device
    target: _Device


class Params(_Section):
    """params.yaml."""

    seed: Annotated[int, Field(ge=0, le=2**31)]
    devices: Annotated[list[_Device], Field(min_length=1)]
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
    cold_start: ColdStartSettings

    @field_validator("calibration")
    @classmethod
    def _evaluated_models_calibrate_nothing(cls, value: CalibrationSettings, known: ValidationInfo) -> CalibrationSettings:
        if "zoo" in known.data and value.seed == known.data["zoo"].seed:
            raise ValueError("seed must not be zoo.seed, which draws the evaluated models")
        return value


def load_params(path: Path) -> Params:
    """Read and validate params.yaml.

    Raises:
        ParamsError: a key is misspelt or missing, or a value is out of range.
    """
    params = read_yaml(path, Params, ParamsError, "params file")
    for name, section in params:
        # settings have defaults for those who use the package without the file; the file says everything
        left_out = type(section).model_fields.keys() - section.model_fields_set if isinstance(section, BaseModel) else ()
        if left_out:
            what = f"params file: {name}.{min(left_out)}: Field required"
            raise ParamsError(what, where=str(path), next_step="correct the named fields")
    return params
