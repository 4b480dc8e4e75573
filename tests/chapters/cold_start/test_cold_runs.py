from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from edgeplan.chapters.cold_start.measuring import runs
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.runs import RUN_COLUMNS, ColdSettings, ExtraRun, PlannedRun, plan_runs, result_frame
from edgeplan.engines.cold import Artefact
from edgeplan.engines.description import imported
from edgeplan.engines.registry import SETTINGS, setting
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import starts
from edgeplan.measurement.process.job import PrepareResult, RunJob, RunResult
from edgeplan.measurement.settings import TimeBudget

KNOBS = ColdSettings(settings=("onnxruntime", "onnxruntime-prepacked"), threads=(1, 2), repeats=3)
ARTEFACT = Artefact(main=Path("m"), files=(Path("m"),))


def test_every_combination_is_planned_once_a_repeat_with_its_probe() -> None:
    planned = list(plan_runs(["a", "b"], KNOBS))
    assert len(planned) == len(set(planned)) == 3 * 2 * (2 * 2 * 2 + 1)
    assert Counter(run.model for run in planned) == {"a": 27, "b": 27}
    assert Counter(run.repeat for run in planned if not run.setting) == {0: 2, 1: 2, 2: 2}


def test_guests_are_shuffled_into_the_groups_of_their_model() -> None:
    guest = ExtraRun("b", ColdModel("b--K", Path("b.onnx"), {"x": (1,)}), "edgeplan", 2, ("cached",), PrepareResult(reason=""))
    planned = list(plan_runs(["a", "b"], KNOBS, [guest]))
    probes = [i for i, run in enumerate(planned) if (run.model, run.setting) == ("b", "")]
    groups = [planned[i + 1 : i + 10] for i in probes]  # 2 settings x 2 threads x 2 states, and the guest
    assert [Counter(run.model for run in group) for group in groups] == [{"b": 8, "b--K": 1}] * 3
    places = [[run.model for run in group].index("b--K") for group in groups]
    assert len(set(places)) > 1
    assert [(groups[r][place].repeat, groups[r][place].state) for r, place in enumerate(places)] == [
        (repeat, "cached") for repeat in range(3)
    ]


def test_the_order_is_seeded_interleaved_and_differs_between_repeats() -> None:
    planned = list(plan_runs(["a", "b"], KNOBS))
    assert planned == list(plan_runs(["a", "b"], KNOBS))
    assert planned != list(plan_runs(["a", "b"], KNOBS.model_copy(update={"seed": 1})))
    assert [run.repeat for run in planned] == sorted(run.repeat for run in planned)
    orders = {
        tuple((r.setting, r.threads, r.state) for r in planned if (r.model, r.repeat) == ("a", repeat)) for repeat in range(3)
    }
    assert len(orders) == 3


def test_unknown_settings_are_named() -> None:
    with pytest.raises(DeviceError, match="unknown setting 'tensorflow'"):
        setting("tensorflow")


def test_every_setting_names_a_program_and_what_prepares_it() -> None:
    for found in SETTINGS.values():
        assert found.program.is_file()
        assert callable(imported(found.prepare))


REFERENCES = {"compute_us": 300.0, "bandwidth_us": 400.0}


def _record(name: str, threads: int, cold_ms: float, *, repeat: int = 0, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"cold_ms": cold_ms, "warm_ms": (4.0, 2.0, 3.0), "state_reached": True, "output_error": 1e-6}
    fields["interference"] = 1.5
    result = RunResult.model_validate({**fields, **changes})
    place = {"model": "a", "setting": name, "threads": threads, "state": "cached", "repeat": repeat, "measured_at": 1.0}
    return {"key": "", **place, "result": json.loads(result.model_dump_json()), "references": REFERENCES}


PREPARED = {
    ("a", name, threads): PrepareResult(engine_version="1", artefact=ARTEFACT, prepare_ms=7.0)
    for name in ("onnxruntime", "openvino", "onnxruntime-prepacked")
    for threads in (1, 2)
}


def test_rows_have_the_schema_and_summaries_of_the_warm_runs() -> None:
    frame = result_frame([_record("onnxruntime", 1, 9.0)], PREPARED)
    assert list(frame.columns) == list(RUN_COLUMNS)
    row = frame.iloc[0]
    assert (row["warm_min_ms"], row["warm_median_ms"], row["prepare_ms"], row["reason"]) == (2.0, 3.0, 7.0, "")
    assert row["interference"] == 1.5


def test_no_rows_still_have_the_schema() -> None:
    frame = result_frame([], {})
    assert list(frame.columns) == list(RUN_COLUMNS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"output_error": 0.5}, "outputs differ"),
        ({"output_error": float("inf")}, "outputs differ"),
        ({"state_reached": False, "cached_before": 0.25}, "25% of the files"),
        ({"reason": "no such layer"}, "no such layer"),
    ],
)
def test_runs_that_do_not_count_say_why(changes: dict[str, Any], reason: str) -> None:
    frame = result_frame([_record("onnxruntime", 1, 9.0, **changes)], PREPARED)
    assert reason in frame.iloc[0]["reason"]


@pytest.mark.parametrize(("name", "counts"), [("onnxruntime", True), ("edgeplan", False), ("edgeplan-evicted", False)])
def test_our_outputs_are_held_to_less_than_those_of_stock_engines(name: str, counts: bool) -> None:
    prepared = {("a", name, 1): PrepareResult(engine_version="1", artefact=ARTEFACT)}
    [reason] = result_frame([_record(name, 1, 9.0, output_error=5e-4)], prepared)["reason"]
    assert (reason == "") == counts
    assert result_frame([_record(name, 1, 9.0, output_error=1e-4)], prepared)["reason"].tolist() == [""]


def test_a_setting_without_artefact_has_a_row_with_its_reason() -> None:
    frame = result_frame([], {("a", "ncnn", 1): PrepareResult(reason="ncnn is not installed")})
    assert frame[["setting", "reason", "repeat"]].to_dict("records") == [
        {"setting": "ncnn", "reason": "ncnn is not installed", "repeat": -1}
    ]
    assert frame["cold_ms"].isna().all()


def test_a_run_whose_pages_went_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel reclaims pages between their reading and the clock; a run that fails is not tried again."""
    b = GraphBuilder("m", (1, 4, 8, 8))
    model = save_onnx(b.build(b.relu(b.input)), tmp_path / "m.onnx")
    reached, made = iter([False, False, True]), []

    def run_cold(job: RunJob, _: float) -> RunResult:
        made.append(job.usual_us)
        return RunResult(cold_ms=float(len(made)), state_reached=next(reached))

    class Store:
        def prepare(self, *_: object, **_named: object) -> PrepareResult:
            return PrepareResult(engine_version="1", artefact=Artefact(main=model, files=(model,)))

        def reference(self, *_: object) -> Path:
            return tmp_path / "reference.npz"

    monkeypatch.setattr(starts, "run_cold", run_cold)
    monkeypatch.setattr("edgeplan.measurement.process.interference.together_us", lambda *_: 300.0)
    knobs = ColdSettings(settings=("onnxruntime",), threads=(1,), states=("cached",), repeats=1)
    found = runs.measure([ColdModel("m", model, {"x": (1,)})], knobs, Store(), tmp_path / "runs.jsonl")  # type: ignore[arg-type]
    assert found.runs[["cold_ms", "reason"]].to_numpy().tolist() == [[3.0, ""]]
    assert made == [300.0] * 3


@pytest.mark.long
def test_beyond_the_budget_only_what_must_be_is_prepared_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engines are real, and so is the time: none."""
    monkeypatch.setattr("edgeplan.measurement.lock.lock_path", lambda: tmp_path / "lock")
    b = GraphBuilder("tiny", (1, 4, 8, 8))
    path = save_onnx(b.build(b.relu(b.conv(b.input, 4, 3))), tmp_path / "tiny.onnx")
    model = ColdModel("tiny", path, {"input": (1, 4, 8, 8)})
    knobs = ColdSettings(settings=("onnxruntime", "onnxruntime-optimised"), threads=(1,), repeats=2, warm_runs=1)
    store, journal, over = ArtefactStore(tmp_path / "store"), tmp_path / "runs.jsonl", TimeBudget(0.0)

    def must(run: PlannedRun) -> bool:
        return (run.setting, run.repeat) == ("onnxruntime", 0)

    found = runs.measure([model], knobs, store, journal, budget=over, must=must)
    made = found.runs[found.runs["reason"] == ""]
    assert made[["setting", "repeat"]].to_numpy().tolist() == [["onnxruntime", 0]] * 2  # in both states
    told = found.runs.set_index("setting")["reason"]
    assert "the time for measuring cold starts was over" in told["onnxruntime-optimised"]
    assert found.left_out == 2 + 2  # the second repeat, and two probes of the disk
    assert not list(tmp_path.glob("store/*optimised*/prepared.json"))
    again = runs.measure([model], knobs, store, journal, budget=over, must=lambda _run: False)
    assert (again.runs["reason"] == "").sum() == len(made)  # what is known is given, whatever the time
    whole = runs.measure([model], knobs, store, journal)
    assert whole.left_out == 0
    assert whole.runs["reason"].tolist() == [""] * 8
    hurried = runs.measure([model], knobs, store, tmp_path / "other.jsonl", budget=over, must=lambda _run: False)
    assert set(hurried.runs["setting"]) == {"onnxruntime", "onnxruntime-optimised"}  # prepared before, and never run
    assert hurried.runs["cold_ms"].isna().all()
