"""Stage `training`: the predictors of a device, and those it is compared with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.evaluation.metrics import accuracy
from edgeplan.frames import write_csv, write_parquet
from edgeplan.params import Params
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.training import train_predictor

#: Folders, below that of the device's predictors, of those trained for comparison only.
RANDOM, ISOLATED, SHORT = "random", "isolated", "in_situ_short"
_CONV = "conv"
#: Samplers whose rows the predictors of a device learn from.
TRAINED_ON = ("adaptive", "random", "prior", "network", "isolated")


def train(params: Params, *, kernels: Path, summary: Path, predictors: Path, quality: Path, samplers: Path) -> None:
    """Train the predictors; hold the samplers against the frozen set; train what the evaluation compares.

    The comparison predictors: Conv from uniformly random samples, all kinds from isolated kernels, and all kinds from as much
    measuring time in carriers as the isolated kernels took.
    """
    table, about = pd.read_parquet(kernels), json.loads(summary.read_text())
    main = _training_rows(table, str(about["mode"]))
    predictor, held_out = _train(main, params, about)
    predictor.save(predictors)
    write_parquet(held_out, quality)
    rows: list[dict[str, object]] = []
    carriers = table[table["mode"] == "in_situ"]
    for name in ("adaptive", "random", "prior"):
        part = carriers[carriers["sampler"].isin([name, "frozen"]) & (carriers["kind"] == _CONV)]
        if not (part["sampler"] == name).any() or not (part["sampler"] == "frozen").any():
            continue
        conv, judged = _train(part, params, about)
        judged = judged[judged["split"] == "frozen"]
        hit = accuracy(judged["measured_us"] / 1e3, judged["predicted_us"] / 1e3)
        rows.append(
            {
                "sampler": name,
                "rows": int((part["sampler"] == name).sum()),
                "seconds": about["sampler_seconds"][name],
                "rmse_ms": hit.rmse,
                "rmspe": hit.rmspe,
                "within_5pct": hit.within_5pct,
                "within_10pct": hit.within_10pct,
            }
        )
        if name == RANDOM:
            predictor.with_kinds_of(conv, [_CONV]).save(predictors / RANDOM)
    write_csv(pd.DataFrame(rows, columns=list(rows[0]) if rows else ["sampler"]), samplers)
    alone = table[table["mode"] == "isolated"]
    if about["mode"] == "in_situ" and len(alone):
        _train(alone, params, about, black_box=True)[0].save(predictors / ISOLATED)
        short = main[main["subject"].isin(set(about["mode_subjects"])) & (main["sampler"] == "adaptive")]
        _train(short, params, about)[0].save(predictors / SHORT)


def _training_rows(table: pd.DataFrame, mode: str) -> pd.DataFrame:
    """All kernels measured in the device's mode, by whichever sampler, and the frozen ones.

    Uniform samples alone predict models badly, but they hold the large depthwise kernels that the prior seldom draws. The
    carriers that two samplers share count once.
    """
    rows = table[(table["mode"] == mode) & table["sampler"].isin([*TRAINED_ON, "frozen"])]
    owner = rows.groupby("subject")["sampler"].transform("first")
    return rows[rows["sampler"] == owner].reset_index(drop=True)


def _train(
    rows: pd.DataFrame, params: Params, about: Mapping[str, Any], *, black_box: bool = False
) -> tuple[DevicePredictor, pd.DataFrame]:
    seeds = tuple(int(s) for s in np.random.SeedSequence(params.seed).generate_state(len(params.training.seeds)) % 2**16)
    return train_predictor(
        rows,
        params.training.model_copy(update={"seeds": seeds}),
        device=str(about["device"]),
        engine=str(about["engine"]),
        engine_version=str(about["engine_version"]),
        call_us=0.0 if black_box else float(about["call_us"]),
        plain_layouts={} if black_box else dict(about["plain_layouts"]),
        measured_at=str(about["measured_at"]),
    )
