"""Reads the evidence of an evaluation: the tables and documents of one device, each of which may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.reporting.chapter_report import NotMeasuredError
from edgeplan.support.frames import read_csv, read_document, read_parquet

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
    "sweeps": "evaluation/sweeps.parquet",
    "conv_fusion": "evaluation/conv_fusion.csv",
}
_ZOO_FILES = {"zoo": "models.parquet", "prior": "prior.parquet"}
_DOCUMENTS = {"sampling": "measurements/sampling.json", "environment": "evaluation/environment.json"}


@dataclass(frozen=True)
class Evidence:
    """Holds what tables, figures and figures of merit are made of; what is empty was not measured.

    Times carry their unit in the column's name.

    Attributes:
        zoo: one row a model of the zoo (models.parquet): model_id, family, index, macs, memory_bytes ...
        test_cases: fusion test cases: pair, connection, context, t_op1_us, t_op2_us, t_pair_us, margin, noise, decision,
            repeats, why_undecided.
        verification: fused edges by engine and by rules: pair, connection, edges, fused_by_engine, fused_by_rules,
            true_positive, bn_folding, reshaping.
        kernels: measured nodes: key, config, sampler, model, latency_us, seconds ...
        sampling: the sampler's document, with `seconds` by part.
        quality: held-out nodes: kernel, key, model, measured_us, predicted_us, forest_us, split.
        samplers: conv predictors by sampler on frozen labels: sampler, rows, seconds, labels, rmse_ms, rmspe (percent),
            within_10pct (share), rmspe_more_low and _high (95 % interval of the rmspe less that of the adaptive one).
        models: evaluated variants: model_id, family, macs, memory_bytes, measured_ms (as it ran), normalised_ms (at the usual
            speed of the machine), noise, measured_at_s (since the epoch), blocks_span_s, repeat_ms, repeat_gap_s, predicted_ms,
            plain_sum_ms (nodes and the call alone), left_out_ms (with overheads of other families alone), low_ms, high_ms,
            guessed_share, operator_sum_ms, forest_ms, {adaptive,random}_sampling_ms: with the Conv predictor of that sampler's
            samples alone.
        calibration: models that set overheads and intervals: model_id, family, measured_ms, slowness, noise, seconds,
            measured_at_s.
        transfer: models measured on one device, predicted by another's predictors and by its own: family, measured_ms,
            transferred_ms, rebuilt_ms.
    """

    device: str
    zoo: pd.DataFrame = field(default_factory=pd.DataFrame)
    prior: pd.DataFrame = field(default_factory=pd.DataFrame)
    test_cases: pd.DataFrame = field(default_factory=pd.DataFrame)
    verification: pd.DataFrame = field(default_factory=pd.DataFrame)
    resnet18_kernels: tuple[str, ...] = ()
    kernels: pd.DataFrame = field(default_factory=pd.DataFrame)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    quality: pd.DataFrame = field(default_factory=pd.DataFrame)
    samplers: pd.DataFrame = field(default_factory=pd.DataFrame)
    models: pd.DataFrame = field(default_factory=pd.DataFrame)
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    breakdown: pd.DataFrame = field(default_factory=pd.DataFrame)
    sweeps: pd.DataFrame = field(default_factory=pd.DataFrame)
    conv_fusion: pd.DataFrame = field(default_factory=pd.DataFrame)
    environment: Mapping[str, Any] = field(default_factory=dict)
    transfer: pd.DataFrame = field(default_factory=pd.DataFrame)
    speed: Mapping[str, float] = field(default_factory=dict)
    speed_told: str = ""

    def evaluated(self, *columns: str) -> pd.DataFrame:
        """Return the evaluated variants that have a value in some columns."""
        known = set(columns) <= set(self.models.columns)
        frame = self.models.dropna(subset=list(columns)) if known else self.models.iloc[:0]
        if frame.empty:
            raise NotMeasuredError(f"there are no models with {', '.join(columns)}")
        return frame.reset_index(drop=True)


def read_evidence(device: str, results: Path, zoo: Path, **extra: Any) -> Evidence:
    """Read the evidence of one device from its folder and that of the zoo's tables, with further parts, e.g. speed."""
    parts: dict[str, Any] = {name: _table(results / path) for name, path in _FILES.items()}
    parts |= {name: _table(zoo / path) for name, path in _ZOO_FILES.items()}
    parts |= {name: read_document(results / path) for name, path in _DOCUMENTS.items()}
    return Evidence(device, **parts, **extra)


def _table(path: Path) -> pd.DataFrame:
    return read_parquet(path) if path.suffix == ".parquet" else read_csv(path)
