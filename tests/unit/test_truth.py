"""The stage `truth` on a real engine: models are measured in an order of their own and come back in the table's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture

from edgeplan.frames import write_parquet
from edgeplan.params import load_params
from edgeplan.pipeline.truth import measure_models
from edgeplan.zoo import FAMILIES, variants

ROOT = Path(__file__).parents[2]
MODELS = 6


def measured(folder: Path, repeat: list[str]) -> pd.DataFrame:
    family = FAMILIES["nasbench201"]
    specs = list(variants(family, MODELS, 1))
    table = pd.DataFrame(
        {
            "model_id": [f"{family.id}-{spec.index:05d}" for spec in specs],
            "family": family.id,
            "index": [spec.index for spec in specs],
            "spec": [spec.to_json() for spec in specs],
            "macs": 0,
            "memory_bytes": 0,
        }
    )
    write_parquet(table, folder / "models.parquet")
    (folder / "dev.yaml").write_text(f"format_version: 1\nname: {DEVICE.name}\nengine: {DEVICE.engine}\n")
    params = load_params(ROOT / "params.yaml")
    truth = params.truth.model_copy(update={"repeat": repeat, "min_gap_seconds": 0.2})
    measure_models(
        params.model_copy(update={"measurement": SETTINGS, "truth": truth}),
        device=folder / "dev.yaml",
        models=folder / "models.parquet",
        rows=folder / "rows",
        truth=folder / "truth.parquet",
        environment=folder / "environment.json",
    )
    found = pd.read_parquet(folder / "truth.parquet")
    assert list(found["model_id"]) == list(table["model_id"])
    return found


def test_models_are_measured_in_an_order_of_their_own_and_reported_in_the_tables(tmp_path: Path) -> None:
    first = measured(tmp_path, [DEVICE.name])
    order = np.argsort(first["measured_at_s"].to_numpy())
    assert list(order) != list(range(MODELS))
    assert (first["blocks_span_s"] > 0.39).all(), "three blocks, two gaps of a fifth of a second"
    # the second measurements begin when all first ones have ended
    assert (first["repeat_gap_s"] > first["blocks_span_s"]).all()
    # read from the store, in whichever order, every model has its own values again
    pd.testing.assert_frame_equal(measured(tmp_path, [DEVICE.name]), first)


def test_models_of_other_devices_are_measured_once(tmp_path: Path) -> None:
    assert measured(tmp_path, [])[["repeat_ms", "repeat_gap_s"]].isna().all(axis=None)
