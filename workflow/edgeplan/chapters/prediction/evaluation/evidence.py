"""The evidence of an evaluation is the tables and documents of one device, each of which may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.reporting.metrics import require
from edgeplan.support.frames import read_csv, read_document, read_parquet


@dataclass(frozen=True)
class Evidence:
    """Everything the tables, figures and metrics are made of. Times carry their unit in the column's name; None is absent.

    Attributes:
        device: name of the device, e.g. "cpu-onnxruntime".
        zoo: one row a model of the zoo (models.parquet): model_id, family, index, macs, memory_bytes ...
        prior: one row a configuration of the prior models: kind, config (JSON), count.
        test_cases: fusion test cases: pair, connection, context, t_op1_us, t_op2_us, t_pair_us, margin, noise, decision,
            repeats, why_undecided.
        verification: fused edges by engine and by rules: pair, connection, edges, fused_by_engine, fused_by_rules,
            true_positive, bn_folding, reshaping.
        resnet18_kernels: kernel types of ResNet18 as split by the detected rules.
        kernels: labelled kernels: kind, config, sampler, mode, latency_us ...
        sampling: the sampler's document, with `seconds` by part.
        features: features of each kernel kind's predictor.
        interval: how the intervals were calibrated, as the card of the predictors says it (`Interval`).
        quality: held-out kernels: subject, kind, measured_us, predicted_us, forest_us, split.
        samplers: conv predictors by sampler on frozen labels of at least resolved_us: sampler, rows, seconds, resolved_us,
            labels, rmse_ms, rmspe (percent), within_10pct (share), rmspe_more_low and _high (95 % interval of the rmspe less
            that of the adaptive one); the last six with the suffix _all on all frozen labels.
        models: evaluated variants: model_id, family, macs, memory_bytes, measured_ms, noise, measured_at_s (since the epoch),
            blocks_span_s, repeat_ms, repeat_gap_s, predicted_ms, plain_sum_ms (without factors of kinds), left_out_ms (with
            those of other families alone), low_ms, high_ms,
            operator_sum_ms, forest_ms, isolated_ms, {adaptive,random,prior}_sampling_ms: with the Conv predictor of that
            sampler's samples alone.
        calibration: models that set the factors of kinds and the intervals: model_id, family, measured_ms, noise, seconds,
            measured_at_s.
        breakdown: model_id, kind, predicted_ms.
        evaluated_kernels: distinct kernels of the evaluated variants: kind, config.
        sweeps: sweep, x, kind, measured_us, predicted_us.
        modes: mode, seconds, rows, within_10pct, within_5pct, rmspe (percent).
        conv_fusion: config, type, latency_us.
        environment: the captured environment.
        transfer: models measured on one device, predicted by another's predictors and by its own: family, measured_ms,
            transferred_ms, rebuilt_ms.
        speed: measured speeds: predict_process_s, predict_call_ms, batch_26000_s, tables_26000_s.
        speed_told: when and where, and of which predictors, as a sentence.
    """

    device: str
    zoo: pd.DataFrame | None = None
    prior: pd.DataFrame | None = None
    test_cases: pd.DataFrame | None = None
    verification: pd.DataFrame | None = None
    resnet18_kernels: tuple[str, ...] | None = None
    kernels: pd.DataFrame | None = None
    sampling: Mapping[str, Any] | None = None
    features: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    interval: Mapping[str, Any] = field(default_factory=dict)
    quality: pd.DataFrame | None = None
    samplers: pd.DataFrame | None = None
    models: pd.DataFrame | None = None
    calibration: pd.DataFrame | None = None
    breakdown: pd.DataFrame | None = None
    evaluated_kernels: pd.DataFrame | None = None
    sweeps: pd.DataFrame | None = None
    modes: pd.DataFrame | None = None
    conv_fusion: pd.DataFrame | None = None
    environment: Mapping[str, Any] | None = None
    transfer: pd.DataFrame | None = None
    speed: Mapping[str, float] = field(default_factory=dict)
    speed_told: str = ""

    def has(self, *names: str) -> bool:
        """Tell whether all named parts are there and not empty."""
        return all(part is not None and len(part) > 0 for part in (getattr(self, name) for name in names))

    def frame(self, name: str, *columns: str) -> pd.DataFrame:
        """A table that has to be there, with the columns that have to be in it.

        Raises:
            FormatError: the table or a column is missing.
        """
        part = getattr(self, name)
        if part is None:
            raise FormatError(
                f"the table `{name}` is missing", where=f"evaluation of {self.device}", next_step="run the stage that writes it"
            )
        if not isinstance(part, pd.DataFrame):
            raise TypeError(f"{name} is no table")
        require(part, columns, f"table `{name}` of {self.device}")
        return part

    def evaluated(self, *columns: str) -> pd.DataFrame:
        """Return the rows of evaluated variants."""
        return self.frame("models", "model_id", "family", "measured_ms", *columns).reset_index(drop=True)

    def optional(self, column: str, *others: str) -> pd.DataFrame | None:
        """The evaluated variants that have a value in an optional column; None when there is no such column or value."""
        if self.models is None or column not in self.models.columns:
            return None
        frame = self.evaluated(column, *others)
        frame = frame[frame[column].notna()].reset_index(drop=True)
        return frame if len(frame) else None


#: Table of `Evidence` -> its file below the results of a device.
_FILES = {
    "test_cases": "fusion/test_cases.csv",
    "verification": "fusion/verification.csv",
    "kernels": "measurements/kernels.parquet",
    "quality": "predictors/quality.parquet",
    "samplers": "predictors/samplers.csv",
    "models": "evaluation/models.parquet",
    "calibration": "calibration/models.parquet",
    "breakdown": "evaluation/breakdown.parquet",
    "evaluated_kernels": "evaluation/kernels.parquet",
    "sweeps": "evaluation/sweeps.parquet",
    "modes": "evaluation/modes.csv",
    "conv_fusion": "evaluation/conv_fusion.csv",
}
_ZOO_FILES = {"zoo": "models.parquet", "prior": "prior.parquet"}
_DOCUMENTS = {"sampling": "measurements/sampling.json", "environment": "evaluation/environment.json"}


def read_evidence(
    device: str, results: Path, zoo: Path, *, resnet18_kernels: tuple[str, ...] | None = None, **extra: Any
) -> Evidence:
    """Read what is there of one device.

    Args:
        device: name of the device.
        results: its folder, results/<device>.
        zoo: the folder of the zoo's tables.
        resnet18_kernels: kernel types of ResNet18 (they come from a split, not from a file).
        extra: further parts of `Evidence`, e.g. speed, transfer, features.

    Raises:
        FormatError: a file is there but cannot be read.
    """
    parts: dict[str, Any] = {name: _table(results / path) for name, path in _FILES.items()}
    parts |= {name: _table(zoo / path) for name, path in _ZOO_FILES.items()}
    parts |= {name: _document(results / path) for name, path in _DOCUMENTS.items()}
    return Evidence(device=device, resnet18_kernels=resnet18_kernels, **(parts | extra))


def _table(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    return read_parquet(path) if path.suffix == ".parquet" else read_csv(path)


def _document(path: Path) -> Mapping[str, Any] | None:
    return read_document(path) if path.is_file() else None
