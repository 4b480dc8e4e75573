"""Parts of the rows: each is measured for real on a small model, and a stage that was stopped goes on where it was."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from shipped_params import PARAMS_FILE
from streamed_models import memory_settings

from edgeplan.chapters.memory import plan as planning
from edgeplan.chapters.memory import turns as taking_turns
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.measuring import KILLED, RowsPart, frugal, parts_of
from edgeplan.chapters.memory.plan import MemoryPlanned
from edgeplan.chapters.memory.settings import MemoryParams
from edgeplan.chapters.memory.single_layers import LAYERS, single_layers
from edgeplan.chapters.memory.stages import memory as stage
from edgeplan.chapters.memory.studies import ON_DEMAND, ModelBench, StudiedModel, same_memory
from edgeplan.chapters.memory.turns import Slowing, Turn, busy, computing_ms, in_turns, known, resident_run, slowed
from edgeplan.chapters.registry import load_params
from edgeplan.measurement.process import page_cache
from edgeplan.planning.memory import planner
from edgeplan.profiling.streaming import StreamRun
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.frames import read_parquet
from edgeplan.support.numerics import median_ends

LANE = "processes"  # see tests/conftest.py
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bench(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory, wide: Path, cores: RunCores) -> Iterator[ModelBench]:
    """A small model on the bench, with a stock engine that was measured; what one test planned serves the others."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    settings = memory_settings(
        alternations=2, slowed_beside=("onnxruntime",), single_layers=("conv3x3-64-14x14", "fc-512-512"),
        frugal_settings=("onnxruntime", "onnxruntime-offline", "edgeplan-mapped", "edgeplan"), frugal_mib=(1.0, 64.0),
    )  # fmt: skip
    work = tmp_path_factory.mktemp("bench") / "wide"
    subject = StudiedModel("wide", work / "wide.onnx", work, cores, settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "improved", partial(planning.improved, work=4000))  # layouts are searched for elsewhere
        patch.setattr(planner, "_LADDER_WORK", 300)
        yield ModelBench(subject, partial(shutil.copyfile, wide), {"onnxruntime": {"peak": 40.0 * MIB, "median_ms": 2.0}})


@pytest.fixture(scope="module")
def made(bench: ModelBench) -> MemoryPlanned:
    """A plan of it that reads most of its weights."""
    # another test may have dropped pages that its run then pays for
    return bench.plan(bench.planner.programs.least_bytes() + 6 * MIB)


def test_a_plan_and_all_weights_in_memory_take_turns_in_one_session(bench: ModelBench, made: MemoryPlanned) -> None:
    turns = in_turns(made.candidate, made.document.model_dump(), bench.planner.programs, 3)
    assert len(turns.turns) == 3
    assert len(turns.digests) == 1, "outputs are those with all weights in memory"
    assert turns.peak > made.run.peak_over_idle, "all weights were in memory meanwhile"
    for turn in turns.turns:
        assert turn.resident_ms > 0
        assert 0 < turn.bound_ms < math.inf
        assert turn.factor == 1
    rows = list(turns.rows("budget 0.1"))
    assert [row["place"] for row in rows] == [0, 1, 2]
    assert {row["setting"] for row in rows} == {"budget 0.1"}


def test_sessions_end_once_the_median_is_known() -> None:
    turns = [Turn(ms, 10.0, 10.0, 0.0, 3.0, 1.0, 1.0) for ms in (10.1, 10.12, 10.13, 10.14, 10.15)]
    assert known(turns, 0.01)
    assert not known(turns, 0.001)
    assert not known(turns[:4], 0.01), "of so few nothing is known"
    assert not known([*turns[:4], replace(turns[4], median_ms=20.0)], 0.01)
    assert median_ends(5, 0.04) == (0, 4)
    low, high = median_ends(15, 0.04) or (0, 0)
    assert 0 < low < 7 < high < 14


def test_steps_that_are_prolonged_take_as_much_longer(bench: ModelBench, made: MemoryPlanned) -> None:
    steps = len(made.candidate.program.step_names)
    found = resident_run(made.candidate, bench.planner.programs, 3, [5_000_000] * steps)
    assert min(computing_ms(found.phases)) >= 5


@pytest.mark.parametrize(("native", "rate", "wanted"), [(1.0, 1.0, 40.0), (1.7, 0.5, 40.0), (1.0, 1.0, 1e-3)])
def test_a_processor_is_slowed_until_computing_takes_as_long_as_it_should(
    bench: ModelBench, made: MemoryPlanned, monkeypatch: pytest.MonkeyPatch, native: float, rate: float, wanted: float
) -> None:
    profile = made.candidate.profile
    measured = resident_run(made.candidate, bench.planner.programs, 3)

    def run(_candidate: object, _programs: object, _runs: int, slowed_ns: Sequence[int]) -> StreamRun:
        """A machine whose times do not change, but are not those of the profile."""
        added = slowed_ns or [0] * len(profile.compute_ms)
        steps = tuple(native * ms + ns / 1e6 for ms, ns in zip(profile.compute_ms, added, strict=True))
        phase = measured.phases[0].model_copy(update={"step_ms": (steps, steps)})
        return measured.model_copy(update={"phases": (phase,), "bytes_per_ms": (rate * profile.bytes_per_ms,)})

    monkeypatch.setattr(taking_turns, "resident_run", run)
    slowing = Slowing(made.candidate, bench.planner.programs, wanted)
    slowed_ns = slowing.prolonged_ns(())
    if wanted > 1:
        assert slowing.reached == pytest.approx(wanted, abs=0.1)
    else:
        assert slowed_ns == (), "it computes for longer by itself"
        assert slowing.reached > wanted


def test_the_slowed_plan_stands_beside_all_in_memory_and_engines_slowed_alike(bench: ModelBench, made: MemoryPlanned) -> None:
    rows = list(slowed(bench.subject, bench.planner, made))
    by = {row["setting"]: row for row in rows if row["case"] == "slowed"}
    assert set(by) == {"edgeplan", "onnxruntime"}
    assert (by["edgeplan"]["pairs"], by["edgeplan"]["equal"]) == (2, 1)
    assert by["edgeplan"]["ratio"] > 0
    own = pd.DataFrame([row for row in rows if row["case"] == "turn"])
    theirs = by["onnxruntime"]["least_ms"]
    assert by["onnxruntime"]["median_ms"] == pytest.approx((own["median_ms"] / own["factor"]).median() / theirs - 1)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is no other core")
def test_a_loop_keeps_the_other_core_busy(bench: ModelBench, made: MemoryPlanned, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    before = taking_turns.background_load
    monkeypatch.setattr(
        taking_turns, "background_load", lambda core, percent: loaded.append((core, percent)) or before(core, percent)
    )
    rows = list(busy(bench.subject, bench.planner, made))
    assert loaded == [(bench.subject.cores.reader[0], 100)]
    assert (rows[-1]["pairs"], rows[-1]["equal"]) == (2, 1)


def test_without_another_core_nothing_is_kept_busy(bench: ModelBench, made: MemoryPlanned) -> None:
    alone = replace(bench.subject, cores=RunCores((0,), (0,)))
    assert [row["reason"] for row in busy(alone, bench.planner, made)] == ["there is no other core"]


@pytest.mark.usefixtures("groups")
def test_picks_for_little_memory_run_free_and_are_killed_where_they_do_not_fit(bench: ModelBench) -> None:
    rows = pd.DataFrame(frugal(bench.subject, bench.planner)).set_index(["setting", "budget"])
    free = rows[rows.index.get_level_values("budget").isna()].droplevel("budget")
    assert set(free.index) == {"onnxruntime", "onnxruntime-offline", "edgeplan-mapped", "edgeplan"}
    assert (free["median_ms"] > 0).all()
    assert free.loc["onnxruntime-offline", "file"] > 8 * MIB, "its weights are pages of a file"
    assert rows.loc[("onnxruntime", MIB), "reason"] == KILLED
    assert rows.loc[("onnxruntime", MIB), "failures"] > 0
    assert rows.loc[("edgeplan", MIB), "reason"].startswith("1.00 MiB is not enough")
    assert (rows.xs(64 * MIB, level="budget")["median_ms"] > 0).all()


@pytest.mark.long
@pytest.mark.usefixtures("groups")
def test_mapped_weights_are_run_again_by_another_read_ahead(
    bench: ModelBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_DISKS", tmp_path)  # a file stands for the system's: others may measure on this disk
    file = page_cache.read_ahead_file(bench.subject.work)
    file.parent.mkdir()
    file.write_text("8192")
    settings = bench.subject.settings.model_copy(
        update={"frugal_settings": ("edgeplan-mapped",), "frugal_mib": (64.0,), "frugal_read_ahead_kb": 128}
    )
    rows = pd.DataFrame(frugal(replace(bench.subject, settings=settings), bench.planner))
    again = rows[rows["read_ahead"] == 128]
    assert again["setting"].tolist() == ["edgeplan-mapped"]
    assert (again["median_ms"] > 0).all()
    assert file.read_text() == "8192"


def test_our_plan_stands_beside_whole_layers_on_demand_and_engines_in_as_much_memory(bench: ModelBench) -> None:
    rows = {row["setting"]: row for row in same_memory(bench, ("onnxruntime", "ncnn"))}
    assert set(rows) == {"onnxruntime", ON_DEMAND}, "ncnn was not measured"
    demand = rows[ON_DEMAND]
    assert demand["peak"] <= demand["budget"] + MIB // 4
    assert min(demand["median_ms"], demand["full_ms"]) > 0
    assert rows["onnxruntime"]["full_ms"] == 2.0
    assert rows["onnxruntime"]["budget"] == 40 * MIB


@pytest.mark.long
def test_kernels_and_cuts_of_single_layers_are_run(bench: ModelBench) -> None:
    rows = pd.DataFrame(single_layers(bench))
    kernels = rows[rows["case"] == "kernel"]
    assert len(kernels) > 1
    assert kernels["setting"].is_unique
    assert (kernels["needed"] == kernels["weights"] + kernels["activations"]).all()
    assert kernels["activations"].max() > kernels["activations"].min(), "some take memory besides"
    cuts = rows[(rows["case"] == "slice") & (rows["model"] == "fc-512-512")]
    assert cuts["needed"].is_monotonic_decreasing
    assert len(cuts) >= 3
    assert (cuts[["median_ms", "full_ms"]] > 0).all(axis=None)
    bands = rows[(rows["case"] == "slice") & (rows["place"] > 0)]
    assert set(bands["model"]) == {"conv3x3-64-14x14"}
    assert set(rows["model"]) <= set(LAYERS)


def test_the_parts_of_a_model_have_names_of_their_own_and_those_of_bars_come_first() -> None:
    params = load_params(PARAMS_FILE)
    assert isinstance(params, MemoryParams)
    settings = params.memory
    names = [part.name for part in parts_of(settings.slowed_model, settings)]
    assert len(names) == len(set(names))
    wanted = stage._wanted(params)
    assert len({one.key for one in wanted}) == len(wanted)
    bars = [one.part.bars for one in wanted]
    assert bars == sorted(bars, reverse=True)
    other = stage._wanted(params.model_copy(update={"memory": settings.model_copy(update={"adapted_runs": 7})}))
    changed = {one.part.name for one, two in zip(wanted, other, strict=True) if one.key != two.key}
    assert changed == {"adapted"}, "nothing else rests on it"


def test_a_stage_that_was_stopped_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = load_params(PARAMS_FILE)
    assert isinstance(params, MemoryParams)
    memory = params.memory.model_copy(update={"models": ("squeezenet",), "single_layers": ()})
    params = params.model_copy(update={"memory": memory})
    measured: list[str] = []
    stops = True

    def part(name: str, rows: int) -> RowsPart:
        def measure(_bench: ModelBench) -> Iterator[dict[str, Any]]:
            if name == "second" and stops:
                raise KeyboardInterrupt
            measured.append(name)
            yield from ({"case": name, "place": k} for k in range(rows))

        return RowsPart(name, measure, 1, 0)

    monkeypatch.delenv(stage.STORED_ROWS_ONLY, raising=False)
    monkeypatch.setattr(stage, "parts_of", lambda *_: (part("first", 2), part("empty", 0), part("second", 1)))
    where = {"device": ROOT / "config/devices/cpu-onednn.yaml", "rows": tmp_path / "rows", "work": tmp_path / "work"}
    where |= {"runs": tmp_path / "runs.parquet", "environment_path": tmp_path / "environment.json"}
    with pytest.raises(KeyboardInterrupt):
        stage.measure_memory(params, **where)
    assert measured == ["first", "empty"]
    assert not (tmp_path / "runs.parquet").exists()
    stops = False
    stage.measure_memory(params, **where)
    assert measured == ["first", "empty", "second"], "what was measured is kept"
    table = read_parquet(tmp_path / "runs.parquet")
    assert table["case"].tolist() == ["first", "first", "second"]
    stage.measure_memory(params, **where)
    assert measured == ["first", "empty", "second"]
