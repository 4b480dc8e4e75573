"""The chapter on first inferences within a budget: figures computed by hand, rows found again, starts of a real model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ValidationError
from streamed_models import MODELS, plain_model

from edgeplan.chapters.joint.evaluation.page import JOINT_REPORT, JointEvidence, findings, joint_metrics
from edgeplan.chapters.joint.pairs import EQUAL, PAID_TOGETHER, PROPORTIONAL, TOGETHER, PairedModel, pair_rows
from edgeplan.chapters.joint.settings import JointParams
from edgeplan.chapters.joint.stages import joint as stage
from edgeplan.chapters.joint.ways import COLD, JOINT, NUMBERS, PAID, PLAIN, TEXTS, StartedModel, paired, starts
from edgeplan.errors import StoreError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.memory_group import NoGroupError, memory_group
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.streaming.together_plan import CostedJoin
from edgeplan.support.store import STORED_ROWS_ONLY
from edgeplan.support.tensors import OUTPUT_TOLERANCE
from edgeplan.support.workers import ColdRunError

MAPPED, STOCK = "onnxruntime-offline", "openvino-mapped"
PAIR = "resnet50 and squeezenet"
PACKAGED = {"package": "some-ocr", "version": "1.0", "path": "some/rec.onnx", "sha256": 64 * "a", "shape": ["x=1,3,48,320"]}
_MIB = 1 << 20


def row(model: str, way: str, turn: float = math.nan, first_ms: float = math.nan, **values: Any) -> dict[str, Any]:
    """A row of the stage."""
    own = {"killed": 0.0, "budget": 10.0, "reason": "", "worse": 0.0} | values
    return {"model": model, "way": way, "turn": turn, "first_ms": first_ms} | own


def planned(predicted: float, makespan: float, bound: float) -> dict[str, float]:
    """The columns of a plan."""
    return {"predicted_ms": predicted, "makespan_ms": makespan, "bound_ms": bound, "later_ms": 1.0, "plan_seconds": 12.0}


def evidence() -> JointEvidence:
    """Two models of two turns; of the second one an engine was killed once."""
    one, two = planned(100.0, 80.0, 80.0), planned(200.0, 104.0, 100.0)
    rows = [
        row("resnet50", PAID, peak=9.0, error=1e-6),
        row("squeezenet", PAID, peak=9.5, error=2 * OUTPUT_TOLERANCE),
        *(row("resnet50", JOINT, k, ms, opened_ms=105.0, **one) for k, ms in enumerate((190.0, 210.0))),
        *(row("resnet50", PLAIN, k, ms) for k, ms in enumerate((390.0, 410.0))),
        *(row("resnet50", MAPPED, k, ms) for k, ms in enumerate((500.0, 500.0))),
        *(row("squeezenet", JOINT, k, 300.0, opened_ms=300.0, worse=1.0, **two) for k in range(2)),
        *(row("squeezenet", PLAIN, k, 150.0) for k in range(2)),
        row("squeezenet", MAPPED, 0, 10.0),
        row("squeezenet", MAPPED, 1, killed=1.0, reason="killed: out of memory, or in time"),
        *(row("resnet50", STOCK, k, ms) for k, ms in enumerate((800.0, 800.0))),
        row("squeezenet", "edgeplan-mapped", 0, 1200.0),
        row("vgg16", JOINT, reason="no plan is within the budget"),
        *(row(PAIR, TOGETHER, k, round_ms=ms, budget=20.0) for k, ms in enumerate((80.0, 100.0))),
        *(row(PAIR, EQUAL, k, round_ms=ms, budget=20.0) for k, ms in enumerate((100.0, 140.0))),
        *(row(PAIR, PROPORTIONAL, k, round_ms=ms, reason="too small") for k, ms in enumerate((1.0, math.nan))),
        row(PAIR, PAID_TOGETHER, peak=19.0, budget=20.0),
    ]
    frame = pd.DataFrame(rows).reindex(columns=["model", *TEXTS, *NUMBERS])
    return JointEvidence("cpu-onednn", frame, {"measured_at": "2026-11-28", "cpu": "a processor", "cores": 2})


def test_figures_are_those_that_a_hand_computes() -> None:
    found = joint_metrics(evidence())
    assert found["joint.first_within_budget"] == pytest.approx(math.sqrt(200 / 400 * 300 / 150), rel=1e-5)
    assert found["joint.first_over_stock"] == pytest.approx(math.sqrt(200 / 500 * 300 / 1200), rel=1e-5)
    assert found["joint.stock_lived"] == 1
    assert found["joint.refused"] == 1
    assert found["joint.models_together"] == pytest.approx(90 / 120)
    assert found["joint.models_together_worst"] == pytest.approx(90 / 120)
    assert found["joint.pair_peak_over_budget_max"] == pytest.approx(0.95)
    assert found["joint.killed"] == 0
    assert found["joint.gap_max"] == pytest.approx(0.04)
    assert found["joint.makespan_within_15pct"] == 0.5
    assert found["joint.peak_over_budget_max"] == pytest.approx(0.95)
    assert found["joint.plan_seconds"] == 12
    assert found["joint.special_cases_worse"] == 1
    assert found["joint.outputs_differ"] == 1


def test_ways_that_died_once_are_no_best_and_are_told() -> None:
    told = " ".join(findings(evidence()))
    assert f"squeezenet ({MAPPED}): killed" in told
    assert "squeezenet starts sooner by memory: 150 ms" in told


def test_the_page_shows_tables_and_bars_of_what_was_measured(tmp_path: Path) -> None:
    chapter = tmp_path / "chapters/cpu-onednn/joint.page.json"
    chapter.parent.mkdir(parents=True)
    JOINT_REPORT.show(evidence(), folder=tmp_path / "joint", metrics=tmp_path / "joint.json", chapter=chapter)
    assert json.loads((tmp_path / "joint.json").read_text())["joint.gap_max"] == pytest.approx(0.04)
    table = pd.read_csv(tmp_path / "joint/tables/joint_first.csv")
    assert table.set_index("model")["over_best"].to_dict() == {"resnet50": 0.5, "squeezenet": 2.0}
    assert (tmp_path / "joint/figures/joint_starts.svg").is_file()
    assert "First inferences within a budget" in chapter.read_text()


def test_nothing_alive_shows_nothing_and_fails_bars(tmp_path: Path) -> None:
    frame = pd.DataFrame([row("resnet50", JOINT, 0, killed=1.0, reason="killed")]).reindex(columns=["model", *TEXTS, *NUMBERS])
    dead = JointEvidence("cpu-onednn", frame, {"measured_at": "2026-11-28"})
    found = joint_metrics(dead)
    assert "joint.first_within_budget" not in found
    assert found["joint.killed"] == 1
    chapter = tmp_path / "chapters/cpu-onednn/joint.page.json"
    chapter.parent.mkdir(parents=True)
    JOINT_REPORT.show(dead, folder=tmp_path / "joint", metrics=tmp_path / "joint.json", chapter=chapter)


def params(**changed: Any) -> JointParams:
    """Params of one small model."""
    own = {"devices": ["cpu-onednn"], "models": ["squeezenet"], "share": 0.6, "beside": [MAPPED], "turns": 1} | changed
    return JointParams.model_validate({"seed": 1, "devices": ["cpu-onednn"], "joint": own})


@pytest.mark.parametrize(
    "changed",
    [
        {"models": ["resnet"]},
        {"beside": ["onnx"]},
        {"share": 1.2},
        {"turns": 0},
        {"pairs_of": ["resnet"]},
        {"pair_share": 0},
        {"pair_rounds": 1},
        *({"packaged": {"ocr": PACKAGED | {name: value}}} for name, value in (("sha256", "a"), ("path", "../rec.onnx"))),
        *({"packaged": {"ocr": PACKAGED | {name: value}}} for name, value in (("package", "-x"), ("version", "latest"))),
    ],
)
def test_names_and_numbers_that_are_none_are_refused(changed: Mapping[str, Any]) -> None:
    with pytest.raises(ValidationError):
        params(**changed)


def test_rows_are_found_again_and_a_lack_of_them_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Path(__file__).parents[3] / "config/devices/cpu-onednn.yaml"
    asked: list[str] = []

    def measured(model: Path, *_: Any) -> int:
        asked.append(model.stem)
        return 100 * _MIB

    monkeypatch.setattr(stage, "stock_peak", measured)
    monkeypatch.setattr(stage, "starts", lambda subject, *_: [row("", JOINT, 0, 5.0, budget=float(subject.budget))])

    def run() -> pd.DataFrame:
        where = {"work": tmp_path / "work", "starts": tmp_path / "starts.parquet", "environment": tmp_path / "about.json"}
        stage.measure_joint(params(), device_path=device, rows=tmp_path / "rows", **where)
        return pd.read_parquet(tmp_path / "starts.parquet")

    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with pytest.raises(StoreError):
        run()
    monkeypatch.delenv(STORED_ROWS_ONLY)
    first = run()
    assert first["budget"].tolist() == [60.0 * _MIB]
    assert run().equals(first)
    assert asked == ["squeezenet"]


def test_pairs_are_kept_one_by_one_and_told_where_a_model_has_no_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = params(pairs_of=["squeezenet", "mobilenetv2", "ocr"], packaged={"ocr": PACKAGED})
    assert own.joint.pairs == (("squeezenet", "mobilenetv2"), ("squeezenet", "ocr"), ("mobilenetv2", "ocr"))
    ran: list[list[str]] = []

    def planned_pair(name: str, subject: StartedModel) -> PairedModel:
        if name == "ocr":
            raise ColdRunError("no plan", next_step="give more")
        return PairedModel(name, subject.work, subject.budget, ())

    def rows(pair: Sequence[PairedModel], *_: Any) -> list[dict[str, Any]]:
        ran.append([model.name for model in pair])
        return [row("", TOGETHER, 0, round_ms=5.0, budget=float(sum(model.share for model in pair)))]

    monkeypatch.setattr(stage, "_model", lambda _settings, name, folder, _seed: folder / name)
    monkeypatch.setattr(stage, "stock_peak", lambda *_: 100 * _MIB)
    monkeypatch.setattr(stage, "starts", lambda *_: [row("", JOINT, 0, 5.0)])
    monkeypatch.setattr(stage, "paired", planned_pair)
    monkeypatch.setattr(stage, "pair_rows", rows)
    where = {"work": tmp_path / "work", "starts": tmp_path / "starts.parquet", "environment": tmp_path / "about.json"}
    device = Path(__file__).parents[3] / "config/devices/cpu-onednn.yaml"
    stage.measure_joint(own, device_path=device, rows=tmp_path / "rows", **where)
    found = pd.read_parquet(tmp_path / "starts.parquet").set_index("model")
    assert found.loc["squeezenet and mobilenetv2", "budget"] == 80 * _MIB
    assert found.loc["squeezenet and ocr", "reason"] == "no plan"
    assert ran == [["squeezenet", "mobilenetv2"]]
    stage.measure_joint(own, device_path=device, rows=tmp_path / "rows", **where)
    assert ran == [["squeezenet", "mobilenetv2"]]


@pytest.mark.long
def test_two_models_run_in_turns_within_a_tight_budget_that_pays_for_all(dnnl: Dnnl, tmp_path: Path) -> None:
    assert dnnl.info.version
    try:
        with memory_group():
            pass
    except NoGroupError as error:
        pytest.skip(str(error))
    plans = []
    for name in ("plain", "residual"):
        work = tmp_path / name
        work.mkdir()
        model = save_onnx(MODELS[name](), work / f"{name}.onnx")
        try:
            plans.append(paired(name, StartedModel(model, work, "cpu-onednn", (0, 1), 24 * _MIB, 1)))
        except ColdRunError as error:
            if "another process" in str(error):
                pytest.skip("another process measures on this machine")
            raise
    least = [CostedJoin.of((read_folder(plan.plan),)).least_bytes for plan in plans]
    lopsided = [replace(plans[0], share=least[0] + 4 * _MIB), replace(plans[1], share=least[1] // 2)]
    rows = pd.DataFrame(pair_rows(lopsided, 1, 3, 60.0)).set_index("way")  # the other process is not waited for
    assert "edgeplan run ended with" in rows.loc[PROPORTIONAL, "reason"]
    budget = CostedJoin.of(tuple(read_folder(plan.plan) for plan in plans)).least_bytes + _MIB
    found = pd.DataFrame(pair_rows([replace(plan, share=budget // 2) for plan in plans], 1, 6, 60.0)).set_index("way")
    assert {TOGETHER, PAID_TOGETHER} <= set(found.index)
    one, paid = found.loc[TOGETHER], found.loc[PAID_TOGETHER]
    assert one["round_ms"] > 0
    assert paid["round_ms"] > 0, paid["reason"]
    assert paid["failures"] == 0
    assert budget / 2 < paid["peak"] <= budget  # much less: what was read ahead of the process would count as idle


@pytest.mark.long
def test_a_model_is_planned_and_started_by_all_ways(dnnl: Dnnl, tmp_path: Path) -> None:
    try:
        with memory_group():
            pass
    except NoGroupError as error:
        pytest.skip(str(error))
    assert dnnl.info.version
    model = save_onnx(plain_model(), tmp_path / "plain.onnx")
    subject = StartedModel(model, tmp_path, "cpu-onednn", (0, 1), 24 * _MIB, 1)
    rows = starts(subject, (MAPPED,), 1)
    found = pd.DataFrame(rows)
    if any("another process" in str(row.get("reason")) for row in rows):
        pytest.skip("another process measures on this machine")
    assert set(found["way"]) == {JOINT, PLAIN, COLD, PAID, MAPPED}
    assert found.loc[found["way"] == PAID, "error"].item() <= OUTPUT_TOLERANCE
    assert found.loc[found["way"] == PAID, "peak"].item() <= 24 * _MIB
    assert (found.loc[found["way"].isin([JOINT, PLAIN, COLD]), "first_ms"] > 0).all()
    ours = found[found["way"] == JOINT]  # the others plan no first inference within a budget
    assert (ours["bound_ms"] > 0).all()
    assert (ours["makespan_ms"] >= ours["bound_ms"] * (1 - 1e-9)).all()
