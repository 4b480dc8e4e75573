"""Plans that check themselves: what is chosen and shifted on given times, and a small model planned on a real pair."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_frames import opened_here, partition_params, write_workspace
from typer.testing import CliRunner

from edgeplan.chapters.partition.checked import own_sweep
from edgeplan.chapters.partition.checked import planning as planning_module
from edgeplan.chapters.partition.checked.fastest import fastest, near, worth_a_turn
from edgeplan.chapters.partition.checked.own_sweep import Moving, OwnTimes, own_costs, own_times
from edgeplan.chapters.partition.checked.planning import CheckedPlanning, CheckLimits, OpenedPlan, fastest_right
from edgeplan.chapters.partition.eop.sweeps import SweptModel, subject_of
from edgeplan.chapters.partition.evaluation.checked_page import CHECKED_REPORT
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.planned import write_folder
from edgeplan.chapters.partition.stages.partition_checked import measure_checked
from edgeplan.cli.commands import app
from edgeplan.cuda.driver import Driver
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.engines.serving import EngineSession
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opening import open_plan
from edgeplan.planning.partition.costs import SPLIT
from edgeplan.runs import run
from edgeplan.runtime.folder import ENGINE, read_folder
from edgeplan.runtime.layouts import size_bytes
from edgeplan.runtime.partitioned.build import PairCheck, PairPrediction, PairSchedule
from edgeplan.runtime.partitioned.program import Split
from edgeplan.runtime.partitioned.sections import Extent
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.support.store import STORED_ROWS_ONLY
from edgeplan.support.tensors import relative_error

ROOT = Path(__file__).parents[3]
_CORES = sorted(os.sched_getaffinity(0))[:2]
needs_a_pair = pytest.mark.skipif(
    find_spec("pyopencl") is None or len(_CORES) < 2, reason="a pair takes pyopencl and two cores"
)
extents = st.builds(lambda blocks, rest: Extent(16 * blocks + rest, 16), st.integers(2, 40), st.integers(0, 15))
times = st.floats(0.001, 100)


def test_the_fastest_way_has_its_margin_and_interval() -> None:
    rng = np.random.default_rng(3)
    machine = rng.uniform(1.0, 2.0, 15)  # what all ways meet alike
    found = fastest({"all cores": 10 * machine, "cpu": 20 * machine, "planned": 8 * machine})
    assert (found.way, found.next_best) == ("planned", "all cores")
    assert [found.margin, found.low, found.high] == pytest.approx([1.25] * 3)
    assert found.median_ms["cpu"] == pytest.approx(20 * np.median(machine))
    equal = fastest({"cpu": [5.0, 6.0, 7.0], "planned": [5.0, 6.0, 7.0]})
    assert (equal.way, equal.next_best, equal.margin) == ("cpu", "planned", 1.0), "the simplest"
    alone = fastest({"cpu": [5.0]})
    assert (alone.way, alone.next_best, alone.margin, alone.low) == ("cpu", "", 1.0, 1.0)
    noisy = fastest({"cpu": 10 * rng.uniform(1, 1.5, 15), "planned": 9.9 * rng.uniform(1, 1.5, 15)})
    assert noisy.low < 1.0 < noisy.high


def test_ways_without_hope_are_given_up_and_keep_their_median() -> None:
    times = {"cpu": [10.0, 11.0, 12.0], "gpu": [30.0, 14.5, 31.0], "planned": [9.0, 9.5, 13.0]}
    assert worth_a_turn(times) == ["cpu", "planned"]
    assert worth_a_turn({name: own[:2] for name, own in times.items()}) == list(times), "two turns tell nothing"
    found = fastest({**times, "cpu": [10.0, 11.0, 12.0, 11.0], "planned": [9.0, 9.5, 13.0, 9.5]})
    assert (found.way, found.next_best, found.median_ms["gpu"]) == ("planned", "cpu", 30.0)
    early = fastest({"cpu": [30.0, 31.0, 32.0], "planned": [10.0, 10.0, 10.0, 1.0, 1.0, 1.0, 1.0]})
    assert early.margin == pytest.approx(3.1), "in the turns that both had"
    assert early.low <= early.margin <= early.high


def test_a_way_that_was_lucky_in_one_process_is_not_chosen_for_it() -> None:
    """The GPU's first process is a tenth faster than all cores, its second a fifth slower; the CPU is not opened again."""
    first = {"all cores": [1.62, 1.60, 1.61], "cpu": [3.0, 3.1, 3.2], "gpu": [1.45, 1.46, 1.44]}
    again = {"all cores": [1.61, 1.62, 1.60], "gpu": [1.93, 1.94, 1.95]}
    once = fastest(first)
    assert (once.way, near(once)) == ("gpu", ["all cores", "gpu"])
    found = fastest(first, again)
    assert (found.way, found.next_best) == ("all cores", "gpu")
    assert found.median_ms == pytest.approx({"all cores": 1.61, "cpu": 3.1, "gpu": (1.45 + 1.94) / 2})
    assert found.margin == pytest.approx((1.45 + 1.94) / 2 / 1.61)
    assert found.low <= found.margin <= found.high
    assert fastest(first, {"all cores": [9.0]}).way == "all cores", "what failed the second time is no choice"
    assert fastest(first, way="cpu").way == "cpu"


@given(extents, times, times)
def test_a_block_goes_to_who_waited_and_both_keep_something(extent: Extent, cpu: float, gpu: float) -> None:
    for end in range(extent.unit, own_sweep.last_end(extent) + 1, extent.unit):
        after = own_sweep.shifted(extent, end, (cpu, gpu))
        assert extent.unit <= after <= own_sweep.last_end(extent)
        assert abs(after - end) in (0, extent.unit)
        assert (after - end) * (gpu - cpu) >= 0


@given(extents, st.floats(0.01, 10), st.floats(0.01, 10))
def test_measuring_on_comes_to_an_end_at_the_even_split(extent: Extent, cpu_rate: float, gpu_rate: float) -> None:
    """Where times grow with the part alone the first or second split is the even one, and nothing is asked twice."""

    def parts(end: int) -> tuple[float, float]:
        return end / cpu_rate, (extent.size - end) / gpu_rate

    whole = (extent.size / cpu_rate, extent.size / gpu_rate)
    known: dict[int, tuple[float, float]] = {}
    while (end := own_sweep.next_end(extent, whole, known)) is not None:
        assert end not in known
        known[end] = parts(end)
        assert len(known) <= 4
    every = range(extent.unit, own_sweep.last_end(extent) + 1, extent.unit)
    best = min(max(parts(end)) for end in every)
    assert min(max(one) for one in known.values()) == pytest.approx(best, rel=0.05)


def test_what_cannot_gain_is_not_measured_on() -> None:
    extent = Extent(64, 16)
    assert own_sweep.next_end(extent, (1.0, 1.0), {32: (2.0, 1.9)}) is None, "half of it takes longer than all"
    assert own_sweep.next_end(Extent(16, 16), (1.0, 1.0), {}) is None, "one block"
    assert own_sweep.next_end(extent, (3.0, 1.0), {}) == 16, "where both would take equally long"
    assert own_sweep.next_end(extent, (1.0, 1.0), {32: (np.inf, np.inf)}) is None, "the GPU has no kernel of its part"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three equal layers and one of another size."""
    b = GraphBuilder("small", (1, 32, 28, 28))
    x = b.input
    for _ in range(3):
        x = b.relu(b.conv(x, 32, 3))
    x = b.conv(x, 64, 1)
    return save_onnx(b.build(b.fc(b.flatten(b.gap(x)), 24)), tmp_path_factory.mktemp("model") / "small.onnx")


@pytest.fixture(scope="module")
def subject(model: Path) -> SweptModel:
    return subject_of("small", model, 0)


def test_steps_that_differ_in_names_alone_are_twins(subject: SweptModel) -> None:
    found = own_sweep.twins(subject.lowered, subject.layouts)
    convolutions = [k for k, step in enumerate(subject.lowered.steps) if step.kind == "conv"]
    inner = [found[k] for k in convolutions[1:3]]
    assert inner == [inner[0]] * 2
    assert len({found[k] for k in convolutions}) == len(convolutions) - 1 - (found[convolutions[0]] == inner[0])


@pytest.mark.parametrize("moving", [Moving(0.0, 0.0), Moving(0.01, 0.0), Moving(0.0, 1e-6), Moving(0.01, 1e-6)], ids=str)
def test_moves_cost_what_either_term_of_them_says(subject: SweptModel, moving: Moving) -> None:
    """One of the two may have been lost in noise; where memory is shared both are nothing, and the costs say nothing."""
    count = len(subject.lowered.steps)
    same, none = {k: [1.0, 1.0] for k in range(count)}, [""] * count
    found = OwnTimes(subject, 16, range(count), [None] * count, none, none, whole=same, moving=moving)
    document = json.loads(own_costs(found, names=("CPU", "GPU"), handshake_ms=0.0).content)
    for step, told in zip(subject.lowered.steps, document["operators"], strict=True):
        sizes = [size_bytes(subject.lowered.shapes[t], subject.layouts[t], 16) for t in step.outputs]
        expected = sum(moving.least_ms + moving.ms_per_byte * size for size in sizes)
        assert [told.get("to_cpu_ms", 0.0), told.get("to_gpu_ms", 0.0)] == pytest.approx([expected] * 2)


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    return write_workspace(tmp_path)


@pytest.fixture
def pair(workspace: Path) -> Iterator[Opened]:
    with opened_here(workspace) as found:
        yield found


@needs_a_pair
def test_a_model_is_swept_where_it_runs(pair: Opened, subject: SweptModel) -> None:
    found = own_times(pair, subject, runs=2)
    assert set(found.whole) == set(found.twin)
    assert min(ms for both in found.whole.values() for ms in both) >= 0
    assert any(found.splits.values()), "layers were split"
    assert min(found.step_ms) >= 0
    costs = own_costs(found, names=pair.names, handshake_ms=0.002)
    for step, places in zip(costs.costs.steps, costs.assigned, strict=True):
        assert len(step.options) == len(places)
        assert [isinstance(place, Split) for place in places] == [option.kind == SPLIT for option in step.options]
    apart = own_times(pair, subject, hand_over_ms=1e3, runs=2)
    assert not apart.splits, "handing over takes longer"
    costs = own_costs(apart, names=pair.names, handshake_ms=1e3)
    assert {place for places in costs.assigned for place in places} <= {0, 1}


@needs_a_pair
def test_a_plan_without_predictors_is_swept_checked_and_run(workspace: Path, pair: Opened, model: Path) -> None:
    del pair  # only whether it is there
    done = CliRunner().invoke(
        app, ["plan", "partition", str(model), "--pair", "pair-pocl", "-o", str(workspace / "plan")], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    assert "this is the plan" in done.output
    folder = read_folder(workspace / "plan")
    by_engine = folder.kind == ENGINE
    check = folder.predicted(PairCheck) if by_engine else folder.predicted(PairPrediction).check
    assert check is not None
    own, stock = ("cpu, all cores (nhwc)", "cpu, all cores (blocked16)", "cpu", "gpu"), ("onnxruntime", "openvino")
    assert {*own, *stock} <= set(check.median_ms) | set(check.left_out)
    assert check.median_ms[check.way] == min(check.median_ms.values()), "the fastest is the plan"
    assert check.low <= check.margin <= check.high or check.turns < 15
    assert by_engine == (check.way in stock)
    found = run(workspace / "plan", repeat=2, check=True)
    assert found.difference is not None
    assert found.difference <= 1e-4
    if by_engine:
        return
    assert (len(folder.scheduled(PairSchedule).processors) == 1) == check.way.startswith("cpu")
    assert len(found.spans_ms) == len(folder.scheduled(PairSchedule).plan["steps"])


@pytest.mark.slow
@needs_a_pair
def test_the_stage_plans_once_and_runs_plans_again_later(
    workspace: Path, pair: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways and later runs are stored; where nothing may be measured they are found, and so is a pair without later runs."""
    del pair  # only whether it is there
    small = {"checked_models": ["squeezenet"], "checked_turns": 1, "settings": [], "checked_later_seconds": 0.1}

    def run_stage(**changes: object) -> tuple[pd.DataFrame, pd.DataFrame]:
        params = partition_params(**small | changes)
        path = workspace / "config/pairs/pair-pocl.yaml"
        measure_checked(params, pair_path=path, rows=tmp_path / "rows", work=tmp_path / "work", measured=tmp_path / "measured")
        return tuple(pd.read_parquet(tmp_path / f"measured/{name}.parquet") for name in ("checked", "later"))  # type: ignore[return-value]

    monkeypatch.setattr("edgeplan.chapters.partition.stages.partition_checked.recurrent_variants", dict)  # 28 more models
    checked_first, none = run_stage(checked_fully=[])
    assert len(none) == 0
    assert {"model", "written_ms", "median_ms"} <= set(none)
    checked_again, later = run_stage(checked_fully=["pair-pocl"])
    assert checked_again.equals(checked_first), "ways are measured once"
    assert later["process"].tolist() == [0, 1, 2]
    assert (later["median_ms"] > 0).all(), later["reason"].tolist()
    assert (later["written_ms"] > 0).all()
    assert (later["waited_s"] >= 0.1).all()
    assert not (tmp_path / "work").exists() or not any((tmp_path / "work").iterdir())
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    found = run_stage(checked_fully=["pair-pocl"])
    assert all(map(pd.DataFrame.equals, found, (checked_first, later)))
    evidence = CHECKED_REPORT.read("pair-pocl", tmp_path / "measured")
    assert len(evidence.later) == 3
    assert evidence.checked.query("way in ['cpu', 'gpu']")["ops_ms"].gt(0).all()
    assert evidence.checked.query("way == 'cpu'")["check_ms"].gt(0).all()
    monkeypatch.delenv(STORED_ROWS_ONLY)
    monkeypatch.setattr("edgeplan.chapters.partition.measuring.opened.fingerprint", lambda: "another machine")
    elsewhere = run_stage(checked_fully=["pair-pocl"], checked_seconds=1e-9)
    assert all(map(pd.DataFrame.equals, elsewhere, found)), "kept, and told"
    told = CHECKED_REPORT.read("pair-pocl", tmp_path / "measured").environment
    assert (len(told["machines"]), told["machine"]) == (2, "another machine")
    assert set(elsewhere[0]["machine"]) == {[*told["machines"]][1]}, "of the other one"
    assert (told["asked"], told["second_on_cores"]) == (["squeezenet"], True)


@needs_a_pair
def test_plans_of_each_way_run_and_wrong_outputs_are_left_out(pair: Opened, model: Path, tmp_path: Path) -> None:
    """Every folder that may become the plan is opened as `edgeplan run` opens it."""
    planning = CheckedPlanning(pair.pair, subject_of("small", model, 0), CheckLimits())
    ways = planning.ways(pair, planning.planned(pair))
    folders = {name: tmp_path / f"way{k}" / "plan" for k, name in enumerate(ways)}
    for name, way in ways.items():
        write_folder(way, pair, folders[name])
    for name, folder in folders.items():
        found = run(folder, check=True)
        assert found.difference is not None, name
        assert found.difference <= 1e-4, name
        with open_plan(folder) as session:
            assert isinstance(session, EngineSession if ways[name].engine else PairSession)
            session.run(dict(planning.subject.inputs))
            if isinstance(session, PairSession):
                assert (session.times[np.array(session.placed.lanes) == 1] == -1).all(), "the GPU notes no times"
    (folders["cpu"] / "weights.bin").write_bytes(bytes((folders["cpu"] / "weights.bin").stat().st_size))
    with OpenedPlan(folders["cpu"]) as damaged, pytest.raises(EdgeplanError, match="weights are damaged"):
        damaged.wait()
    check, steps_ms = fastest_right(folders, CheckLimits(turns=2, fewest=1, turns_s=0.0, stock=()))
    assert "weights are damaged" in check.left_out["cpu"]
    assert "cpu" not in check.median_ms
    assert check.way in check.median_ms
    assert len(steps_ms) == (0 if ways[check.way].engine else len(planning.subject.lowered.steps))
    assert not any(folder.exists() for folder in folders.values())


@pytest.fixture(scope="module")
def ways_apart(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of three ways that open no second processor, and of the pair's GPU."""
    root = tmp_path_factory.mktemp("apart")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPLAN_WORKSPACE", str(root / "workspace"))
        with opened_here(write_workspace(root / "workspace")) as pair:
            planning = CheckedPlanning(pair.pair, subject_of("small", model, 0), CheckLimits())
            for name, way in planning.ways(pair, planning.planned(pair)).items():
                if name != "planned":
                    write_folder(way, pair, root / "ways" / name)
    return root / "ways"


@needs_a_pair
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_plan_that_a_stock_engine_answers_is_a_folder_like_any_other(
    ways_apart: Path, subject: SweptModel, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    folder = shutil.copytree(ways_apart / engine, tmp_path / "plan")
    reference = ort.InferenceSession(str(model))
    with open_plan(folder) as session:
        for seed in (1, 2):
            values = {name: value + seed for name, value in subject.inputs.items()}
            own, expected = session.run(values), reference.run(None, values)
            assert relative_error([*own.values()], expected) <= 1e-4, "it takes what it is given, not what was drawn once"
    with pytest.raises(DeviceError, match="the session was closed"):
        session.run(values)
    done = CliRunner().invoke(app, ["run", str(folder), "--repeat", "3", "--check"], catch_exceptions=False)
    assert f"small.onnx: by {engine} " in done.output
    assert "median" in done.output
    monkeypatch.setattr("edgeplan.engines.serving.version_of", lambda _: "0.0")
    with pytest.raises(FormatError, match=r"library is 0\.0"):
        open_plan(folder)
    monkeypatch.setattr("edgeplan.engines.serving.version_of", lambda _: "")
    with pytest.raises(DeviceError, match="not installed") as caught:
        open_plan(folder)
    assert "pip install" in caught.value.next_step
    model.rename(tmp_path / "elsewhere.onnx")
    try:
        monkeypatch.undo()
        with pytest.raises(ModelError, match=r"small\.onnx' that was planned is not found"):
            open_plan(folder)
    finally:
        (tmp_path / "elsewhere.onnx").rename(model)


_WAYS = ("cpu, all cores (nhwc)", "cpu", "gpu")
#: By way and round.
Faults = Mapping[tuple[str, int], str]


class _Faulty(OpenedPlan):
    """A plan whose process is killed at a question, or answers "wrong", by way and round; all ways take the same time."""

    faults: ClassVar[Faults]
    rounds: ClassVar[Counter[str]]

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.rounds[folder.name] += 1
        self.fault = self.faults.get((folder.name, self.rounds[folder.name]), "")

    def asked(self, line: str) -> Any:
        if self.fault and line.startswith(self.fault):
            self.process.kill()
            self.process.wait()
        return super().asked(line)

    def wait(self) -> None:
        super().wait()
        if self.fault == "taken":
            raise Driver._failed(SimpleNamespace(name="GPU 0"), "cuCtxCreate", "DEVICE_UNAVAILABLE")  # type: ignore[arg-type]

    def turn(self) -> list[float]:
        self.asked("turn")
        return [1.0]

    def outputs(self) -> Mapping[str, Any]:
        found = super().outputs()
        return {name: 2 * value for name, value in found.items()} if self.fault == "wrong" else found


Checked = Callable[[Faults], tuple[PairCheck, list[float]]]


@pytest.fixture
def checked(ways_apart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checked:
    """What checks the three ways, of equal times, under faults."""

    def check(faults: Faults) -> tuple[PairCheck, list[float]]:
        monkeypatch.setattr(planning_module, "OpenedPlan", _Faulty)
        monkeypatch.setattr(_Faulty, "faults", faults, raising=False)
        monkeypatch.setattr(_Faulty, "rounds", Counter(), raising=False)
        for name in _WAYS:
            shutil.copytree(ways_apart / name, tmp_path / name)
        return fastest_right({name: tmp_path / name for name in _WAYS}, CheckLimits(turns=1, fewest=1, turns_s=0.0, stock=()))

    return check


@needs_a_pair
@pytest.mark.parametrize(
    ("faults", "way"),
    [
        ({(_WAYS[0], 1): "save", (_WAYS[1], 1): "turn"}, _WAYS[2]),
        ({(_WAYS[0], 1): "steps"}, _WAYS[1]),
        ({(_WAYS[0], 2): "save"}, _WAYS[1]),
        ({(_WAYS[0], 2): "steps", (_WAYS[1], 2): "turn"}, _WAYS[2]),
        ({(_WAYS[0], 1): "wrong", (_WAYS[1], 1): "wrong"}, _WAYS[2]),
        ({(_WAYS[2], 1): "wrong"}, _WAYS[0]),
    ],
    ids=str,
)
def test_a_way_that_ends_or_is_wrong_is_left_out_whenever_it_does(checked: Checked, faults: Faults, way: str) -> None:
    """The first of equally fast ones is the plan: the first that neither failed nor has outputs that are not the model's."""
    check, steps_ms = checked(faults)
    assert (check.way, set(check.left_out)) == (way, {name for name, _ in faults})
    assert set(check.median_ms) == {*_WAYS} - set(check.left_out)
    assert check.next_best not in check.left_out
    assert steps_ms
    for (name, _), what in faults.items():
        assert ("differ from ONNX Runtime's" in check.left_out[name]) == (what == "wrong")


@needs_a_pair
def test_where_all_that_are_opened_again_fail_the_best_of_the_others_is_the_plan(
    checked: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is slower than what is near to the fastest, and works."""
    plain = _Faulty.turn
    monkeypatch.setattr(_Faulty, "turn", lambda self: [ms + 9 * (self.folder.name == "gpu") for ms in plain(self)])
    check, steps_ms = checked({(name, 2): "turn" for name in _WAYS[:2]})
    assert (check.way, check.median_ms, set(check.left_out)) == ("gpu", {"gpu": 10.0}, {*_WAYS[:2]})
    assert steps_ms
    assert not any(tmp_path.iterdir())


@needs_a_pair
@pytest.mark.parametrize("wrong", [0, 2])
def test_without_a_reference_the_majority_is_right(checked: Checked, monkeypatch: pytest.MonkeyPatch, wrong: int) -> None:
    def cannot(*_: object) -> None:
        raise ModelError("ONNX Runtime cannot run the model")

    monkeypatch.setattr(planning_module, "judged", cannot)
    check, _ = checked({(_WAYS[wrong], 1): "wrong"})
    assert (check.way, set(check.left_out)) == (_WAYS[0 if wrong else 1], {_WAYS[wrong]})
    assert "differ from those of" in check.left_out[_WAYS[wrong]]


@needs_a_pair
@pytest.mark.parametrize(
    ("faults", "told", "advice"),
    [
        ({(name, 1): "save" for name in _WAYS}, r"no way to run the model works: .*; cpu: .*; gpu: ", "on one processor"),
        ({("gpu", 1): "taken"}, r"one process at a time: .*DEVICE_UNAVAILABLE", "nvidia-smi -c DEFAULT"),
    ],
    ids=["no way works", "a GPU for one process is no way that is left out"],
)
def test_where_nothing_can_be_chosen_it_says_why(checked: Checked, faults: Faults, told: str, advice: str) -> None:
    with pytest.raises(DeviceError, match=told) as caught:
        checked(faults)
    assert advice in caught.value.next_step


@pytest.mark.skipif(len(_CORES) < 2, reason="two cores")
def test_each_thread_of_a_processor_stays_on_a_core_of_its_own() -> None:
    before = os.sched_getaffinity(0)
    with OnednnProcessor(_CORES):
        bound = [os.sched_getaffinity(int(task.name)) for task in Path("/proc/self/task").iterdir()]
        assert os.sched_getaffinity(0) == {_CORES[0]}
        assert {_CORES[1]} in bound
    assert os.sched_getaffinity(0) == before
