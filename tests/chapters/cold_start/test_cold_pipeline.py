"""Parts of the stage that measures cold starts, without measuring."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from cold_start_instances import layouts
from shipped_params import PARAMS_FILE

from edgeplan.chapters.cold_start.measuring import bench as cold_runs
from edgeplan.chapters.cold_start.measuring import planning
from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.chapters.cold_start.measuring.bench import ColdStartBench, shared_journal
from edgeplan.chapters.cold_start.measuring.runs import ColdResults, ColdSettings, ExtraRun
from edgeplan.chapters.cold_start.planners.registry import profile_for
from edgeplan.chapters.cold_start.stages import cold_start as cold_stage
from edgeplan.chapters.cold_start.stages.cold_start import (
    CHECK_COLUMNS,
    DOCUMENTS,
    check_outputs,
    measure_cold_start,
    table2_graph,
)
from edgeplan.chapters.registry import load_params
from edgeplan.errors import StoreError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.background import background_load
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import Plan, Target
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.program import step_candidates
from edgeplan.support.frames import table_store
from edgeplan.support.store import Journal

TARGET = Target("net.onnx", "a" * 64, "onednn", "3.2.0", "avx2", "here", 2)


def test_a_plan_is_made_once_for_the_same_costs(tmp_path: Path) -> None:
    def planned(of: tuple[Profile, ...], name: str = "optimal", gap: float = 1e-3, disk: Disk | None = None) -> Plan:
        return planning.planned_once(table_store(tmp_path, *planning.PLAN_COLUMNS), Search(gap), name, of, TARGET, disk)

    profiles = layouts(10, 1)
    made = planned(profiles)
    assert planned(profiles) == made  # its planning time too: it was not planned again
    assert profile_for(made, profiles).layout == made.layout
    assert len(list(tmp_path.iterdir())) == 1
    planned(layouts(10, 2))
    planned(profiles, gap=0.05)
    for disk in (Disk(900.0), Disk(1800.0)):
        planned(profiles, "evicted", disk=disk)
    assert len(list(tmp_path.iterdir())) == 5


def test_profiles_for_fewer_cores_and_for_uneven_ones() -> None:
    profiles = layouts(4, 1)
    assert [p.big_cores for p in planning.on_cores(profiles, 1)] == [1, 1, 1]
    assert planning.on_cores(profiles, 3) == ()
    chip = planning.uneven(profiles, 3.0)[0]
    assert (chip.equal, chip.queues, chip.narrow, chip.little_ratio) == (False, 1, 1, 3.0)


def test_where_nothing_may_be_measured_the_tables_of_an_earlier_run_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEPLAN_STORED_ROWS_ONLY", "1")
    root = Path(__file__).parents[3]
    folders = {name: tmp_path / name for name in ("predictors", "rows", "work", "measured")}
    folders["measured"].mkdir()
    for name in DOCUMENTS:
        with pytest.raises(StoreError, match=f"{name} is missing") as caught:
            measure_cold_start(load_params(PARAMS_FILE), device=root / "config/devices/cpu-onednn.yaml", **folders)
        assert "git checkout" in caught.value.next_step
        (folders["measured"] / name).write_text(name)
    measure_cold_start(load_params(PARAMS_FILE), device=root / "config/devices/cpu-onednn.yaml", **folders)
    assert {path.name: path.read_text() for path in folders["measured"].iterdir()} == {name: name for name in DOCUMENTS}
    assert not folders["rows"].exists()


def test_outputs_of_every_candidate_are_compared_once(tmp_path: Path, dnnl: Dnnl, monkeypatch: pytest.MonkeyPatch) -> None:
    capacities: list[int] = []

    def offered(*given: Any) -> Any:
        capacities.append(dnnl.primitive_cache)
        return step_candidates(*given)

    monkeypatch.setattr(cold_stage, "step_candidates", offered)
    graph = table2_graph()
    model = ColdModel("conv", save_onnx(graph, tmp_path / "conv.onnx"), {"input": graph.shape("input")})
    reference = tmp_path / "reference.npz"
    np.savez(reference, out=np.zeros(graph.shape(graph.outputs[0]), np.float32))

    kept = table_store(tmp_path / "kept", *CHECK_COLUMNS)

    def check(choices: int, threads: tuple[int, ...] = (1,)) -> list[float]:
        found, left_out = check_outputs(
            dnnl, model, graph, lambda: reference, threads=threads, seed=1, choices=choices, kept=kept
        )
        assert set(found["threads"]) == set(threads)
        assert left_out == 0
        return found["error"].tolist()

    errors = check(1)
    assert len(errors) == 3  # one program a home layout
    assert len(check(1, (1, 2))) == 6  # and width
    assert min(errors) == float("inf")  # it differs from the (wrong) reference
    np.savez(reference, out=np.ones(graph.shape(graph.outputs[0]), np.float32))
    assert check(1) == errors  # kept
    assert len(check(2)) > 3
    hurried = {"threads": (1, 2), "seed": 1, "choices": 3, "kept": kept}
    for _ in range(2):  # what was not checked to the end is not kept
        few, left_out = check_outputs(dnnl, model, graph, lambda: reference, **hurried, budget=TimeBudget(0.0))
        assert (len(few), left_out > 0) == (1, True)
    assert len(check_outputs(dnnl, model, graph, lambda: reference, **hurried)[0]) == 1 + left_out
    assert set(capacities) == {0}  # the library's cache may offer what a fresh process does not


def test_plans_are_run_beside_the_stock_engines_but_for_uneven_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ColdSettings] = []
    beside: list[ExtraRun] = []

    def measure(models: list[ColdModel], knobs: ColdSettings, *rest: Any, **_: Any) -> ColdResults:
        asked.append(knobs)
        if len(rest) > 4:
            beside.extend(rest[4])
        told = [(models[0].name, name) for name in knobs.settings] + [(guest.alias.name, guest.setting) for guest in beside]
        return ColdResults(pd.DataFrame(told, columns=["model", "setting"]), pd.DataFrame({"model": ["m"], "mb_per_s": [1.0]}))

    monkeypatch.setattr(cold_runs, "measure_runs", measure)
    s = load_params(PARAMS_FILE).cold_start.model_copy(update={"load_percents": (25,), "repeats": 5, "further_repeats": 3})
    made = {("m", name, 2): PrepareResult(reason=name) for name in ("optimal", "nnv12", "K", "continuous")}
    made["m", "asymmetric", 1] = PrepareResult(reason="")
    bench = ColdStartBench(s, (0, 1), 0, None, tmp_path / "journal")  # type: ignore[arg-type]
    runs, *_ = cold_runs.measure_all(bench, [ColdModel("m", tmp_path / "m.onnx", {"x": (1,)})], made)
    labels = {("onnxruntime", ""), ("edgeplan", "optimal"), ("edgeplan-fixed", "K"), ("edgeplan", "nnv12")}
    assert labels <= set(zip(runs["setting"], runs["plan"], strict=True))
    assert set(runs["model"]) == {"m"}
    main, uneven, *loaded = asked
    assert (main.repeats, uneven.repeats) == (5, 3)
    assert (main.states, uneven.states) == (s.states, ("cached",))
    assert (main.cpus, uneven.cpus) == ((0, 1), ())
    assert uneven.settings == ("edgeplan-fixed",), "an idle lane would take work"
    assert {(guest.model, guest.alias.name, guest.setting, guest.states, guest.prepared.reason) for guest in beside} == {
        ("m", "m--nnv12", "edgeplan", ("cached",), "nnv12"),
        ("m", "m--K", "edgeplan-fixed", s.states, "K"),  # a sequence, to be run as one
        ("m", "m--continuous", "edgeplan-continuous", ("cached",), "continuous"),
    }
    assert [knobs.loaded for knobs in asked] == [False] * 2 + [True] * len(loaded)
    assert max(knobs.repeats for knobs in loaded) == 3
    assert s.model_copy(update={"repeats": 1}).fewer_repeats == 1


def test_journals_are_brought_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kept = tmp_path / "rows" / "runs.jsonl"
    Journal(kept).commit({"key": "a", "measured_at": 1.0})
    with shared_journal(kept, "cpu-test") as path:
        assert [r["key"] for r in Journal(path).query()] == ["a"]
        Journal(path).commit({"key": "b", "measured_at": 2.0})
    assert [r["key"] for r in Journal(kept).query()] == ["a", "b"]
    kept.unlink()  # a fresh clone finds what this machine measured
    with suppress(RuntimeError), shared_journal(kept, "cpu-test") as path:
        Journal(path).commit({"key": "c", "measured_at": 3.0})
        raise RuntimeError("killed")
    assert [r["key"] for r in Journal(kept).query()] == ["a", "b", "c"]


def test_background_load_ends_with_its_block() -> None:
    def children() -> str:
        return subprocess.run(["ps", "-e", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout

    mark = "edgeplan.measurement.process.background 0 1"
    with background_load(0, 1):
        time.sleep(0.05)
        assert mark in children()
    assert mark not in children()
    with background_load(0, 0):
        assert "edgeplan.measurement.process.background 0 0" not in children()
