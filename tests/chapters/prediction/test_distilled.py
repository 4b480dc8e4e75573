"""The shipped predictors: small, and the same as those that the tables are made with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from edgeplan.predictors.distilled import TREES, cut, load_distilled, save_distilled

from depth import by_day
from edgeplan.chapters.prediction.distil import MAX_BYTES, MAX_CHANGE
from edgeplan.chapters.prediction.models import kernels_of
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.support.frames import read_parquet
from edgeplan.workspace import SHIPPED

ROOT = Path(__file__).parents[3]
DEVICES = sorted(path.parent.name for path in SHIPPED.glob("*/card.json"))
shipped = pytest.mark.parametrize("device", by_day(DEVICES))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.committed
def test_sizes_and_latencies_of_the_zoo(device: str) -> None:
    folder, results = SHIPPED / device, ROOT / "results" / device
    assert (folder / TREES).stat().st_size <= MAX_BYTES
    assert (folder / "rules.json").read_bytes() == (results / "fusion/rules.json").read_bytes()
    # as the pipeline predicted them with all of the trees, on the machine of the committed results
    models = read_parquet(results / "evaluation/models.parquet", "model_id", "family", "predicted_ms")
    specs = read_parquet(results / "calibration/models.parquet", "model_id", "family", "spec", "measured_ms")
    found = load_distilled(folder).predict_many(kernels_of(specs, read_rules(folder / "rules.json")))
    assert np.median(np.abs(np.log(found.latency_ms / specs["measured_ms"]))) < 0.05
    assert len(models) > 100
    zoo = ROOT / "data/zoo/models.parquet"
    if zoo.is_file():  # in no git
        joined = read_parquet(zoo, "model_id", "family", "spec").merge(models, on="model_id", suffixes=("", "_again"))
        again = load_distilled(folder).predict_many(kernels_of(joined, read_rules(folder / "rules.json"))).latency_ms
        assert np.median(np.abs(again / joined["predicted_ms"] - 1)) <= MAX_CHANGE


@shipped
def test_what_is_written_and_read_is_written_as_the_same_bytes(device: str, tmp_path: Path) -> None:
    save_distilled(load_distilled(SHIPPED / device), tmp_path / "once", 0.0)
    save_distilled(load_distilled(tmp_path / "once"), tmp_path / "again", 0.0)
    for name in (TREES, "card.json"):
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_cutting_moves_no_prediction_of_a_tree_further_than_it_may() -> None:
    whole = load_distilled(SHIPPED / "cpu-openvino").forest
    rows = np.random.default_rng(0).uniform(0, 300, (200, 1 + int(whole.feature.max())))
    for tolerance in (0.0, 1e-3, 1.0):
        less = cut(whole, tolerance)
        trees = int(whole.tree_start[1])
        change = np.abs(less.raw(rows, np.zeros(200, int)) - whole.raw(rows, np.zeros(200, int)))
        assert change.max() <= tolerance * trees + 1e-9
        assert (less.feature >= 0).sum() < (whole.feature >= 0).sum()  # some leaves agree to all their digits


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    for name in (TREES, "card.json"):
        (tmp_path / name).write_bytes((SHIPPED / DEVICES[0] / name).read_bytes())
    content = (tmp_path / TREES).read_bytes()
    (tmp_path / TREES).write_bytes(content[: int(share * len(content))])
    with pytest.raises(FormatError, match="the trees cannot be read"):
        load_distilled(tmp_path)
