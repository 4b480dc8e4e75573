"""Stage `transfer` (Table 11): predictors of one device tried on another, beside the rebuilt ones."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from edgeplan.evaluation.artifacts import Evidence
from edgeplan.evaluation.registry import TABLES
from edgeplan.evaluation.tables import write_table
from edgeplan.params import Params


def transfer(
    params: Params, *, source: Path, target: Path, source_environment: Path, target_environment: Path, csv: Path
) -> None:
    """Hold the predictions made for one device against the models measured on another, over the models both evaluated."""
    predicted, measured = pd.read_parquet(source), pd.read_parquet(target)
    both = measured.merge(predicted, on=["model_id", "family", "macs"], suffixes=("", "_source"))
    frame = pd.DataFrame(
        {
            "family": both["family"],
            "measured_ms": both["measured_ms"],
            "transferred_ms": both["predicted_ms_source"],
            "rebuilt_ms": both["predicted_ms"],
        }
    )
    table = TABLES["table_11"]
    caption = f"{table.caption} Source {params.transfer.source}, target {params.transfer.target}, {len(frame)} models of both."
    if frame.empty:  # the two devices were evaluated with other params
        made = pd.DataFrame({"note": ["the two devices were evaluated on no common model: run both with the same params"]})
    else:
        made = table.function(Evidence(device=params.transfer.target, transfer=frame))
    devices = ((params.transfer.source, source_environment), (params.transfer.target, target_environment))
    dates = "; ".join(f"{name} {json.loads(path.read_text())['measured_at']}" for name, path in devices)
    write_table(made, csv.with_suffix(""), table.title, caption, dates)
