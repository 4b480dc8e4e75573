"""The stages of the chapter on partitions rebuilt from the rows of the repository: as measured, whatever predictors say now."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from partition_frames import partition_params

from edgeplan.chapters.partition.evaluation.eop_page import EOP_REPORT
from edgeplan.chapters.partition.measuring.opened import identities
from edgeplan.chapters.partition.measuring.rows import (
    CHECKED,
    COLUMNS,
    LATER,
    NotThereError,
    PartitionRows,
    join_ways,
    split_ways,
)
from edgeplan.chapters.partition.stages import partition_checked
from edgeplan.chapters.partition.stages.partition import measure_partition
from edgeplan.chapters.partition.stages.partition_eop import measure_eop
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError, FormatError
from edgeplan.support.machine import machine_kind
from edgeplan.support.store import STORED_ROWS_ONLY

ROOT = Path(__file__).parents[3]
PAIR = ROOT / "config/pairs/pair-pocl.yaml"
RESULTS = ROOT / "results/pair-pocl/partition"


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stage `partition` and, with its predictors, the stage `partition_eop`, where nothing may be measured."""
    folder = tmp_path_factory.mktemp("rebuilt")
    for stage in ("partition", "partition_eop"):
        shutil.copytree(ROOT / "data/rows/pair-pocl" / stage, folder / "rows" / stage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(STORED_ROWS_ONLY, "1")
        given = {"pair_path": PAIR, "work": folder / "work", "measured": folder / "measured"}
        params = partition_params(trials=1)  # hardly tuned: predictors choose other splits than those that were measured
        measure_partition(params, rows=folder / "rows/partition", **given)
        given |= {"measured": folder / "measured/eop", "predictors": folder / "measured/predictors"}
        measure_eop(params, rows=folder / "rows/partition_eop", **given)
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


def test_rows_of_several_days_say_so() -> None:
    assert partition_checked.days(pd.Series([3 * 86400.0, 5.0, 86400.0])) == "1970-01-01 to 1970-01-04"
    assert partition_checked.days(pd.Series([5.0, 86000.0])) == "1970-01-01"


def _known_rows(over_low: float) -> pd.DataFrame:
    own = {"way": "cpu", "median_ms": 1.0, "chosen": 1.0, "over_low": over_low, "reason": ""}
    return pd.DataFrame([own]).reindex(columns=[*CHECKED["checked"], *LATER["checked"]])


def test_what_is_worth_most_is_measured_first_and_the_next_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was slower, models that this machine knows nothing of, the others; a budget ends that, and all rows stay."""
    names = ["resnet18", "vgg16", "alexnet", "googlenet", "mobilenetv2"]
    params = partition_params(checked_models=names, checked_seconds=0.3, checked_fully=["pair-pocl"])
    pair = load_pair(PAIR)
    monkeypatch.setattr(partition_checked, "recurrent_variants", lambda: {"LSTM layers 2": None})
    measured: list[str] = []

    def planned(_: partition_checked._Run, name: str) -> pd.DataFrame:
        measured.append(name)
        time.sleep(0.3)
        return _known_rows(0.9)

    monkeypatch.setattr(partition_checked._Run, "_planned", planned)
    monkeypatch.setattr(partition_checked._Run, "_is_due", lambda *_: False)

    def run_stage() -> tuple[list[str], pd.DataFrame]:
        stores = {name: PartitionRows(tmp_path, [name], CHECKED, partition_checked.PROTOCOL) for name in ("here", "there")}
        stage = partition_checked._Run(pair, params, stores, tmp_path / "work")
        for where, name, protocol, slow in (
            ("there", "resnet18", partition_checked.PROTOCOL.name, 1.1),
            ("here", "vgg16", partition_checked.PROTOCOL.name, 1.1),
            ("here", "alexnet", "partition-checked/2", 0.9),
            ("here", "mobilenetv2", "partition-checked/2", 1.1),
        ):
            key = stores[where]._keys("checked", stage._what(name))[protocol]
            stores[where].stores["checked"].commit({key: _known_rows(slow).assign(measured_at=1.0, others=0.0)})
        before = len(measured)
        stage.go()
        return measured[before:], stage.stored("checked")

    for expected in (["mobilenetv2"], ["LSTM layers 2"], ["resnet18"], ["googlenet"], ["alexnet"], []):
        found, rows = run_stage()
        assert found == expected, "what was measured is not measured again"
        assert set(rows.query("machine == 'there'")["model"]) == {"resnet18"}
        assert {"vgg16", "alexnet", "mobilenetv2"} <= set(rows.query("machine == 'here'")["model"])
    assert set(rows.query("machine == 'here'")["model"]) == {*names, "LSTM layers 2"}


@pytest.mark.committed
def test_rows_of_a_pair_that_is_another_machine_each_time_are_of_its_kind() -> None:
    """Machine, memory, kernel and load may differ there, what computes may not; other pairs' rows are of one machine."""
    recorded, local = (load_pair(ROOT / f"config/pairs/{name}.yaml") for name in ("pair-h200-8sm", "pair-pocl"))
    about = json.loads((ROOT / "data/rows/pair-h200-8sm/partition_checked/about.json").read_text())
    machine = about["environment"]
    same = {"memory_gib": 1.0, "kernel": "9", "load_1min": 3.0, "affinity": [0], "python": "3"}
    same |= dict.fromkeys(("fingerprint", "machine"), "b")
    other = about | {"identity": ["b", *about["identity"][1:]], "environment": machine | same}
    assert [*identities(recorded, other)] == [*identities(recorded, about)]
    assert len(identities(recorded, about | {"earlier": [other]})) == 1
    assert len(identities(local, about | {"earlier": [other]})) == 2
    for changed in ({"cpu": "another"}, {"cores": 8}, {"caches": []}, {"isa": ["avx2"]}, {"cpu_family_model": "6/1"}):
        assert [*identities(recorded, other | {"environment": machine | changed})] != [*identities(recorded, about)]
    driver = other | {"identity": [*other["identity"][:2], "CUDA 14", *other["identity"][3:]]}
    assert [*identities(recorded, driver)] != [*identities(recorded, about)]
    assert machine_kind(machine) == machine_kind(machine | same)
    stored = PartitionRows(
        ROOT / "data/rows/pair-h200-8sm/partition_checked", next(iter(identities(recorded, other).values()))[0], CHECKED,
        partition_checked.PROTOCOL,
    )  # fmt: skip
    params = partition_params()
    s = params.partition
    found = [stored.stored("checked", [m, params.seed, s.checked_turns, s.settings]) for m in s.checked_models]
    assert sum(rows is not None for rows in found) >= 16, "of the repository, on any machine of the kind"
