"""The ladder of budgets: kept rows, draws within a budget, figures by hand, and rungs of a real pair of devices."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.adaptation.evaluation.evidence import LadderEvidence
from edgeplan.chapters.adaptation.evaluation.figures import FIGURES
from edgeplan.chapters.adaptation.evaluation.metrics import ladder_metrics
from edgeplan.chapters.adaptation.evaluation.page import findings
from edgeplan.chapters.adaptation.evaluation.tables import TABLES
from edgeplan.chapters.adaptation.kept import CARRIERS, KERNELS, MODELS, KeptDevice, kept_devices, model_kernels
from edgeplan.chapters.adaptation.ladder import (
    ADAPTED,
    ALL_SECONDS,
    OLD,
    POOLED,
    SCRATCH,
    LadderDevice,
    Pool,
    _by_family,
    _spent,
    draws,
)
from edgeplan.chapters.adaptation.settings import AdaptationSettings
from edgeplan.errors import FormatError
from edgeplan.predictors.adapting import adapt
from edgeplan.predictors.distilled import load_distilled
from edgeplan.support.frames import read_parquet, write_parquet
from edgeplan.workspace import SHIPPED
from edgeplan.zoo.unseen import UNSEEN

KEPT = Path(__file__).parents[3] / "data/transfer"
SETTINGS = AdaptationSettings(
    devices=[], reports=["transfer"], budgets_seconds=[15], seeds=2, models_share=1 / 3, start_seconds=1.7
)
MACHINE = {
    "engine": "e",
    "engine_version": "1",
    "cpu": "X",
    "cpu_family_model": "1/2",
    "threads": 1,
    "measured_at": "2026-01-01",
}


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return Path(shutil.copytree(KEPT / "cpu-onednn-zen4", tmp_path / "cpu-onednn-zen4"))


def test_every_kept_device_can_be_read_and_says_where_it_is_from() -> None:
    found = {device.about.device: device for device in kept_devices(KEPT)}
    onednn = [d.about for d in found.values() if d.about.engine == "onednn"]
    assert len({about.fingerprint for about in onednn}) == len(onednn) >= 3  # one engine on three processors
    for device in found.values():
        assert set(device.models["use"]) >= {"calibrating", "variant"}
        assert device.carriers.index.equals(pd.Index(device.kernels["subject"].unique(), name="subject"))


@pytest.mark.parametrize(
    ("file", "column", "value"),
    [(KERNELS, "latency_us", -1.0), (CARRIERS, "seconds", np.nan), (MODELS, "measured_ms", 0.0), (MODELS, "seconds", np.inf)],
)
def test_times_that_no_measurement_gives_are_refused(kept: Path, file: str, column: str, value: float) -> None:
    table = read_parquet(kept / file)
    table.loc[3, column] = value
    write_parquet(table, kept / file)
    with pytest.raises(FormatError, match="not finite or not above zero") as told:
        KeptDevice.read(kept)
    assert "adaptation_rows --device cpu-onednn-zen4" in str(told.value)


def test_kernels_without_their_carrier_are_refused(kept: Path) -> None:
    table = read_parquet(kept / CARRIERS)
    write_parquet(table.iloc[1:].reset_index(drop=True), kept / CARRIERS)
    with pytest.raises(FormatError, match="do not belong together"):
        KeptDevice.read(kept)


@pytest.mark.parametrize(("use", "why"), [("unseen", "no architecture"), ("other", "unknown use")])
def test_models_that_cannot_be_built_are_refused(kept: Path, use: str, why: str) -> None:
    table = read_parquet(kept / MODELS)
    table.loc[0, ["use", "model_id"]] = [use, "elsewhere"]
    write_parquet(table, kept / MODELS)
    with pytest.raises(FormatError, match=why):
        KeptDevice.read(kept)


def test_unseen_architectures_have_kernels() -> None:
    rules = KeptDevice.read(KEPT / "cpu-onednn-zen4").rules
    found = model_kernels(pd.DataFrame({"use": ["unseen"], "model_id": [min(UNSEEN)], "spec": [""]}), rules)
    assert found[0].name == min(UNSEEN)
    assert found[0].configs


def test_a_folder_of_another_device_is_refused(kept: Path) -> None:
    kept.rename(kept.parent / "renamed")
    with pytest.raises(FormatError, match="the rows are of device cpu-onednn-zen4"):
        kept_devices(kept.parent)


def test_origins_with_unknown_fields_are_refused(kept: Path) -> None:
    about = json.loads((kept / "about.json").read_text())
    (kept / "about.json").write_text(json.dumps({**about, "host": "x"}))
    with pytest.raises(FormatError, match="host"):
        KeptDevice.read(kept)


def test_a_budget_is_never_exceeded() -> None:
    assert _spent([2, 0, 1], np.array([3.0, 2.0, 4.0]), 6.5) == ([2, 1], 6.0)  # what does not fit is passed over
    assert _spent([0], np.array([3.0]), 1.0) == ([], 0.0)


def test_each_family_has_its_turn() -> None:
    models = pd.DataFrame({"family": ["a"] * 5 + ["b"] * 2 + ["c"]})
    order = _by_family(models, np.random.default_rng(0))
    assert sorted(order) == list(range(8))
    assert set(models["family"].iloc[order[:3]]) == {"a", "b", "c"}
    assert set(models["family"].iloc[order[3:5]]) == {"a", "b"}


@pytest.mark.long
def test_a_quarter_of_a_minute_makes_an_old_device_useful() -> None:
    kept = KeptDevice.read(KEPT / "cpu-onednn-zen5")
    few = kept.of("variant").iloc[::10]
    target = LadderDevice.of(
        KeptDevice(kept.about, kept.kernels, kept.carriers, pd.concat([kept.calibrating, few]), kept.rules)
    )
    old = load_distilled(SHIPPED / "cpu-onednn")
    pool = Pool.of(target, old)
    draw = draws(target, pool, SETTINGS, 15.0, 0)
    assert draw.seconds <= 15.0
    again = draws(target, pool, SETTINGS, 15.0, 0)
    assert (draw.subjects, draw.models.tolist()) == (again.subjects, again.models.tolist())
    assert draws(target, pool, SETTINGS, ALL_SECONDS, 0).subjects == set(kept.carriers.index)
    measured = target.judged["measured_ms"].to_numpy()

    def within(predicted: Any) -> float:
        return float((np.abs(predicted / measured - 1) <= 0.1).mean())

    found = adapt(target.new(draw), [old], None, 0).predict_many(target.tables)
    assert within(old.predict_many(target.tables).latency_ms) < 0.1
    assert within(found.latency_ms) > 0.6


def ladder() -> pd.DataFrame:
    """Ten models of two devices: adapted ones hit 9 at 60 s and 8 at 15 s, those from scratch 8 at 60 s; all inside but one."""
    rows = []
    for target, source in (("x", "y"), ("y", "x")):
        for method, budget_s, hits in ((ADAPTED, 60.0, 9), (ADAPTED, 15.0, 8), (SCRATCH, 60.0, 8), (OLD, 0.0, 1)):
            for seed in range(2):
                for number in range(10):
                    predicted = 1.04 if number < hits else 1.5
                    rows.append((target, "" if method == SCRATCH else source, method, budget_s, seed, f"m{number}", predicted))
    frame = pd.DataFrame(rows, columns=["target", "source", "method", "budget_s", "seed", "model_id", "predicted_ms"])
    told = {"use": "variant", "measured_ms": 1.0, "low_ms": 0.9, "spent_s": 1.0, "carriers": 3, "whole_models": 2}
    return frame.assign(**told, high_ms=np.where(frame["predicted_ms"] < 1.2, 1.1, 1.6)).assign(
        low_ms=np.where(frame["predicted_ms"] < 1.2, 0.9, 1.4)
    )


def evidence(frame: pd.DataFrame) -> LadderEvidence:
    return LadderEvidence("transfer", frame, {"devices": {"x": MACHINE, "y": MACHINE}, "measured_at": "2026-01-01"})


def test_figures_are_shares_of_the_least_pair() -> None:
    frame = ladder()
    worse = (frame["target"] == "y") & (frame["method"] == ADAPTED) & (frame["budget_s"] == 60) & (frame["model_id"] == "m8")
    frame.loc[worse, "predicted_ms"] = 1.3
    found = ladder_metrics(evidence(frame))
    assert found["adapt.within_10pct_60s"] == pytest.approx(0.8)
    assert found["adapt.within_10pct_60s.low"] < 0.8 < found["adapt.within_10pct_60s.high"]
    assert found["adapt.within_10pct_15s"] == pytest.approx(0.8)
    assert found["scratch.within_10pct_60s"] == pytest.approx(0.8)
    assert found["adapt.coverage_90_60s"] == pytest.approx(0.9)
    assert found["adapt.pairs"] == 2
    assert found["adapt.rungs_worse"] == 0
    assert "adapt.unseen_within_10pct_60s" not in found  # none was measured


def test_a_rung_that_is_surely_worse_than_scratch_is_counted() -> None:
    frame = ladder()
    frame.loc[(frame["target"] == "x") & (frame["method"] == ADAPTED) & (frame["budget_s"] == 60), "predicted_ms"] = 2.0
    assert ladder_metrics(evidence(frame))["adapt.rungs_worse"] == 1


def test_all_others_together_are_no_pair() -> None:
    frame = ladder()
    pooled = frame[frame["method"] == ADAPTED].assign(source=POOLED, predicted_ms=3.0)
    found = ladder_metrics(evidence(pd.concat([frame, pooled], ignore_index=True)))
    assert found["adapt.within_10pct_60s"] == pytest.approx(0.9)
    assert found["adapt.pairs"] == 2


def test_tables_figure_and_findings_show_every_rung() -> None:
    made = evidence(ladder())
    table = TABLES["ladder"].make(made)
    assert table["seconds"].tolist() == ["60", "15"] * 2
    assert table["adapted within 10 % (%)"].tolist() == pytest.approx([90, 80, 90, 80])
    assert table["scratch within 10 % (%)"].isna().tolist() == [False, True] * 2
    devices = TABLES["ladder_devices"].make(made)
    assert devices["old device as it is (%)"].tolist() == pytest.approx([10, 10])
    assert len(FIGURES["ladders"].make(made).axes) >= 2
    assert findings(made)[0] == "x from y: 60 s 90 %, 15 s 80 %."
