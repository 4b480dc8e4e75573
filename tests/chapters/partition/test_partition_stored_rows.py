"""The stages of the chapter on partitions rebuilt from the rows of the repository: as measured, whatever predictors say now."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.partition.eop.page import EOP_REPORT
from edgeplan.chapters.partition.measuring.rows import COLUMNS, NotThereError, PartitionRows, join_ways, split_ways
from edgeplan.chapters.partition.settings import PartitionParams
from edgeplan.chapters.partition.stages.partition import measure_partition
from edgeplan.chapters.partition.stages.partition_eop import measure_eop
from edgeplan.errors import DeviceError, FormatError
from edgeplan.support.store import STORED_ROWS_ONLY

ROOT = Path(__file__).parents[3]
PAIR = ROOT / "config/pairs/pair-pocl.yaml"
RESULTS = ROOT / "results/pair-pocl/partition"


def _params(**changes: object) -> PartitionParams:
    """The shipped parameters, with predictors that are hardly tuned: they choose other splits than those that were measured."""
    document = yaml.safe_load(PARAMS_FILE.read_text())
    document["partition"] |= {"trials": 1, **changes}
    return PartitionParams.model_validate({name: document[name] for name in ("seed", "devices", "partition")})


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage `partition` and, with its predictors, the stage `partition_eop`, where nothing may be measured."""
    folder = tmp_path_factory.mktemp("rebuilt")
    for stage in ("partition", "partition_eop"):
        shutil.copytree(ROOT / "data/rows/pair-pocl" / stage, folder / "rows" / stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STORED_ROWS_ONLY, "1")
        given = {"pair_path": PAIR, "work": folder / "work", "measured": folder / "measured"}
        measure_partition(_params(), rows=folder / "rows/partition", **given)
        given |= {"measured": folder / "measured/eop", "predictors": folder / "measured/predictors"}
        measure_eop(_params(), rows=folder / "rows/partition_eop", **given)
    return folder / "measured"


def _same(rebuilt: Path, name: str, keys: list[str], *columns: str) -> None:
    own, shipped = (
        pd.read_parquet(folder / f"{name}.parquet").sort_values(keys).reset_index(drop=True)[[*keys, *columns]]
        for folder in (rebuilt, RESULTS)
    )
    pd.testing.assert_frame_equal(own, shipped, check_dtype=False)


@pytest.mark.slow
def test_layers_and_models_are_those_that_were_measured(rebuilt: Path) -> None:
    _same(rebuilt, "layers", ["kind", "name", "way"], "channels", "outputs", "us")
    _same(rebuilt, "models", ["model", "way"], "median_ms", "predicted_ms", "splits", "reason")
    layers, models = (pd.read_parquet(rebuilt / f"{name}.parquet") for name in ("layers", "models"))
    ours = layers[layers["way"] == "ours"]
    assert (ours["channels"] != ours["now"]).any(), "these predictors choose otherwise"
    planned = models[models["way"] == "ours"].dropna(subset="predicted_ms")
    assert planned["now_ms"].gt(0).all()


@pytest.mark.slow
def test_plans_of_eop_are_those_that_were_measured(rebuilt: Path) -> None:
    _same(rebuilt, "eop/plans", ["model", "way"], "median_ms", "predicted_ms", "reason")
    _same(rebuilt, "eop/key", ["model", "step"], "tuned_us", "grid_us")
    evidence = EOP_REPORT.read("pair-pocl", rebuilt / "eop")
    assert evidence.own["subgraphs"].gt(1).all(), "of every model"


def test_rows_of_another_plan_count_where_nothing_may_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = PartitionRows(tmp_path, ["machine"])
    first, second = (
        pd.DataFrame({"channels": [channels], "us": us, "low_us": us, "high_us": us}).assign(
            cpu_implementation="", gpu_implementation="", layer=0, way="pair", chosen_by=join_ways(["ours", "equal"])
        )
        for channels, us in ((16, 5.0), (32, 4.0))
    )

    def found(planned: int, measure: pd.DataFrame | None) -> float:
        def measured() -> pd.DataFrame:
            assert measure is not None, "nothing is to be measured"
            return measure

        kept = PartitionRows(tmp_path, ["machine"])
        return float(kept.found("fresh", ["layer"], measured, lambda stored: int(stored["channels"][0]) == planned)["us"][0])

    assert found(16, first) == 5
    assert found(16, None) == 5, "of the same plan"
    with monkeypatch.context() as patch:
        patch.setenv(STORED_ROWS_ONLY, "1")
        assert found(32, None) == 5, "as measured"
        with pytest.raises(NotThereError):
            rows.found("fresh", ["another layer"], lambda: first)
    assert found(32, second) == 4, "the present plan is missing"
    rows = PartitionRows(tmp_path, ["machine"])
    assert split_ways(rows.found("fresh", ["layer"], lambda: first)["chosen_by"][0]) == ["ours", "equal"]
    assert rows.protocols["fresh"] == {"partition/3"}
    assert np.isnan(rows.found("models", ["m"], _model_row)["cpu_ms"][0])


def test_a_recording_that_was_cut_short_goes_on_where_it_ended(tmp_path: Path) -> None:
    """What was measured before a failure is kept; a file that was cut short is told by its name, with what to do."""

    def fails() -> pd.DataFrame:
        raise DeviceError("the GPU was lost", where="a GPU", next_step="run again")

    rows = PartitionRows(tmp_path, ["machine"])
    rows.found("models", ["first"], _model_row)
    with pytest.raises(DeviceError, match="the GPU was lost"):
        rows.found("models", ["second"], fails)
    again = PartitionRows(tmp_path, ["machine"])
    assert again.found("models", ["first"], fails)["way"].tolist() == ["ours"], "measured once"
    assert again.found("models", ["second"], _model_row)["way"].tolist() == ["ours"]
    again.merge("models")
    (kept,) = (tmp_path / "models").iterdir()
    kept.write_bytes(kept.read_bytes()[:-20])
    with pytest.raises(FormatError, match=f"{kept}(?s:.*)git checkout"):
        PartitionRows(tmp_path, ["machine"])


def _model_row() -> pd.DataFrame:
    return pd.DataFrame({"way": ["ours"], "reason": [""]}).reindex(columns=list(COLUMNS["models"]))
