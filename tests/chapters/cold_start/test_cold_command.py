"""`edgeplan plan cold-start`: it writes a plan, refuses what it cannot plan before it measures, and kernels for later runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pandas as pd
import pytest
import yaml
from onnx import TensorProto, helper
from plan_folders import cold_plan, records_in
from tiny_profiled import PLAN_TINY, git, own_state, tiny  # noqa: F401  a fixture
from typer.testing import CliRunner

from edgeplan.chapters.cold_start import api
from edgeplan.chapters.cold_start.planners.registry import (
    REPAID_WITHIN,
    fastest_warm,
    outcomes,
    plan_start,
    repaid,
    with_warm_kernels,
)
from edgeplan.cli.commands import app
from edgeplan.engines.base import random_inputs
from edgeplan.errors import BusyError, EdgeplanError, FormatError, ModelError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Target, check_fits, plan_of, plan_text
from edgeplan.planning.profile import Candidate, Layer, Profile, check
from edgeplan.profiling import profiler
from edgeplan.profiling.frame import from_frame, to_frame
from edgeplan.profiling.profiler import LOCK_SECONDS
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.native_session import open_session


def _workspace(folder: Path, **fields: object) -> None:
    device = {"format_version": 1, "name": "dev", "engine": "onednn", **fields}
    (folder / "config/devices").mkdir(parents=True)
    (folder / "config/devices/dev.yaml").write_text(yaml.safe_dump(device))


def _empty_windows(path: Path) -> None:
    """Windows that see padding alone, which no step of the runtime pools; their latency can be predicted."""
    node = helper.make_node("MaxPool", ["x"], ["y"], name="odd", kernel_shape=[1, 2], pads=[0, 2, 0, 2])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8, size]) for n, size in (("x", 8), ("y", 11))]
    body = helper.make_graph([node], "g", [values[0]], [values[1]])
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


def test_the_command_writes_a_plan(dnnl: Dnnl, planned_tiny: tuple[Path, str]) -> None:
    folder, output = planned_tiny
    assert "ms predicted" in output
    planned = cold_plan(folder / "plan")
    check_fits(planned, target_of(folder / "tiny.onnx", dnnl, planned.threads), tuple(s.name for s in lower(tiny()).steps))
    assert planned.layout == "nhwc"
    assert list((folder / "state/edgeplan/workspace/data/rows/dev/cold").glob("*.parquet"))


def test_planning_a_model_of_ones_own_changes_no_file_of_a_clone(
    planned_tiny: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = planned_tiny
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    done = CliRunner().invoke(app, ["plan", "memory", "tiny.onnx", "-d", "dev", "-o", "small", "-b", "64MiB", "--threads", "1"])
    assert done.exit_code == 0, done.output
    assert git(folder, "status", "--porcelain") == ""


@pytest.mark.long
def test_the_cache_is_limited(planned_tiny: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = planned_tiny
    monkeypatch.chdir(folder)
    whole = (folder / "plan" / "weights.cache").stat().st_size
    assert f"weight cache    {whole / 1e6:.2f} MB, no limit" in output
    cached = [s.weight_bytes for s in records_in(folder / "plan")[0] if s.cached]
    for limit in (0.0, sum(cached) / 2e6, 1.0):
        done = CliRunner().invoke(app, [*PLAN_TINY, "-o", "limited", "--cache-limit", str(limit)])
        assert done.exit_code == 0, done.output
        kept = [s.weight_bytes for s in records_in(folder / "limited")[0] if s.cached]
        cache = folder / "limited" / "weights.cache"
        size = cache.stat().st_size if cache.exists() else 0
        told = f"weight cache    {size / 1e6:.2f} MB, limit {limit:.2f} MB: "
        left = f"{(sum(cached) - sum(kept)) / 1e6:.2f} MB of weights ({len(cached) - len(kept)} steps) left out"
        assert told + (left if len(kept) < len(cached) else "everything planned is in it") in done.output
        assert sum(kept) <= limit * 1e6
        assert (len(kept) < len(cached)) == (limit < 1)


def test_a_plan_for_an_evicted_page_cache_says_so(planned_tiny: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, output = planned_tiny
    assert "page cache      warm" in output
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    done = CliRunner().invoke(app, [*PLAN_TINY, "-o", "streamed", "--planner", "evicted"])
    assert done.exit_code == 0, done.output
    planned = cold_plan(folder / "streamed")
    assert planned.disk is not None
    assert planned.disk.mb_per_s > 0
    assert f"page cache      evicted: {planned.disk.mb_per_s:.0f} MB/s" in done.output
    assert planned.makespan_ms >= planned.disk.latency_ms + planned.disk.transfer_ms(planned.read_bytes)


def test_only_a_plan_that_has_to_measure_asks_for_the_machine(
    planned_tiny: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(seconds: float) -> None:
        assert seconds == LOCK_SECONDS
        raise BusyError(what="somebody measures", where="here", next_step="wait")

    monkeypatch.chdir(planned_tiny[0])
    monkeypatch.setenv("XDG_STATE_HOME", str(planned_tiny[0] / "state"))
    monkeypatch.setattr(profiler, "machine_lock", busy)
    stored = CliRunner().invoke(app, [*PLAN_TINY, "-o", str(tmp_path / "stored")])
    assert stored.exit_code == 0, stored.output
    predicted = CliRunner().invoke(app, [*PLAN_TINY, "-o", str(tmp_path / "predicted"), "--costs", "predicted"])
    assert predicted.exit_code == 0 or "no predictors" in str(predicted.exception)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "new"))
    measured = CliRunner().invoke(app, [*PLAN_TINY, "-o", str(tmp_path / "measured"), "--rows", str(tmp_path / "none yet")])
    assert isinstance(measured.exception, BusyError)


def test_the_command_refuses_a_model_before_it_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    _empty_windows(tmp_path / "wide.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "wide.onnx", "-d", "dev", "-o", "plan"])
    assert isinstance(done.exception, ModelError)
    assert "odd (MaxPool)" in str(done.exception)
    assert not (tmp_path / "plan").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("fields", "options", "message"),
    [
        *(({}, ["--cache-limit", limit], "is no limit for a cache\n  where: --cache-limit") for limit in ("-1", "nan", "1e7")),
        ({}, ["--planner", "best"], "no planner"),
        ({}, ["--layouts", "nwch"], "no layout"),
        ({}, ["--costs", "predicted"], "no predictors"),
        ({"big_cores": [0, 0]}, [], "named twice"),
        ({"little_cores": [1]}, [], "needed beside little_cores"),
        ({"little_ratio": 3.0}, [], "only with little_cores"),
        ({"big_cores": [0], "little_cores": [4096]}, [], "core 4096 does not exist"),
    ],
)
def test_the_command_refuses_options_and_core_sets(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], options: list[str], message: str
) -> None:
    assert dnnl
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path, **fields)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", *options])
    assert isinstance(done.exception, EdgeplanError)
    assert message in str(done.exception)
    assert not (tmp_path / "plan").exists()


TARGET = Target("net.onnx", "a" * 64, "onednn", "3.2.0", "avx2", "here", 2)


def _candidate(name: str, prepare: float, first: float, warm: float | None, source: str = "raw") -> Candidate:
    times, none = {"big": prepare}, {"big": 0.0}
    known = {} if warm is None else {1: 2 * warm, 2: warm}
    return Candidate(name, source, times, none, none, {1: 2 * first, 2: first}, warm_ms=known)


def _two(warm: bool = True) -> Profile:
    """`lazy` generates code in its first execution, and is the faster one ever after; `eager` is fast at once."""
    eager, lazy = _candidate("eager", 1.0, 3.0, 3.0 if warm else None), _candidate("lazy", 1.0, 20.0, 2.0 if warm else None)
    return Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, lazy)), Layer("b", (), (lazy, eager))))


def test_kernels_for_later_runs_are_chosen_by_their_warm_times() -> None:
    assert fastest_warm(_two()) == (1, 0)
    made = plan_start([_two()], "optimal", TARGET)
    assert set(made.cold) == {"eager"}
    later = with_warm_kernels(made, [_two()])
    assert later.warm == ("lazy", "lazy")
    assert plan_of(plan_text(later), "here") == later
    assert made.warm == made.later == ()
    assert later.implementations == ("eager", "lazy")
    assert (later.cold, later.source, later.places) == (made.cold, made.source, made.places), "the cold start stays as it was"
    with pytest.raises(FormatError, match="no profile of layout"):
        with_warm_kernels(made, [replace(_two(), layout="nchw")])


def _switched(prepare: float, first: float) -> tuple[str, ...]:
    """The kernels for later runs of two steps, for each of which `lazy` saves a millisecond."""
    made = plan_start([_two()], "optimal", TARGET).model_copy(update={"widen_from": 0})  # on all cores already: not made again
    assert set(made.cold) == {"eager"}
    eager, lazy = _candidate("eager", 1.0, 3.0, 3.0), _candidate("lazy", prepare, first, 2.0)
    again = Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, lazy)), Layer("b", (), (lazy, eager))))
    assert fastest_warm(again) == (1, 0)
    return with_warm_kernels(made, [again]).warm


@pytest.mark.parametrize(("share", "kernel"), [(0.9, "lazy"), (1.1, "eager")])
def test_other_kernels_for_later_runs_must_repay_their_preparation_and_first_executions(share: float, kernel: str) -> None:
    assert _switched(2 * share * REPAID_WITHIN, 2.0) == (kernel, kernel)  # two cores share it
    # what is generated in a first execution serves both steps: each alone would repay half of it
    assert _switched(0.0, 2.0 + 2 * share * REPAID_WITHIN) == (kernel, kernel)


def test_a_kernel_that_is_made_from_cached_weights_is_not_for_later_runs() -> None:
    """What later runs prepare comes from the model's weights."""
    eager = _candidate("eager", 1.0, 3.0, 3.0)
    cached, raw = _candidate("lazy", 0.1, 20.0, 2.0, "cached_mmap"), _candidate("lazy", 500.0, 20.0, 2.0)
    profile = Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (eager, cached, raw)),))
    made = plan_start([profile], "optimal", TARGET)
    assert made.cold == ("eager",)
    assert repaid(made, profile) == (0,)


def test_the_plan_of_a_stock_engine_takes_what_is_fastest_when_warm_and_pays_its_first_execution() -> None:
    found = outcomes([_two()], "warm")["nhwc"]
    assert [c.implementation for c in found.chosen] == ["lazy", "lazy"]
    assert found.makespan_ms == pytest.approx(2 * (1 + 20))
    assert fastest_warm(_two(warm=False)) == (0, 1), "without warm times the first executions stand for them"
    slow, quick = _candidate("slow", 5.0, 9.0, 2.0), _candidate("quick", 1.0, 9.0, 2.0)  # prepared sooner
    assert fastest_warm(Profile("m", "nhwc", 2, 0, 1.0, (Layer("a", (), (slow, quick)),))) == (1,)


def test_warm_times_survive_a_table_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    to_frame([_two()]).to_parquet(path, index=False)
    frame = pd.read_parquet(path)
    assert from_frame(frame) == (_two(),)
    assert from_frame(frame.drop(columns=["warm_1_ms", "warm_2_ms"])) == (_two(warm=False),)
    some = frame.assign(warm_2_ms=frame["warm_2_ms"].where(frame["implementation"] == "lazy"))
    (found,) = from_frame(some)
    assert [[c.warm(2) for c in layer.candidates] for layer in found.layers] == [[3.0, 2.0], [2.0, 3.0]]
    with pytest.raises(FormatError, match=r"not of its column's type.*fast"):
        from_frame(frame.assign(warm_1_ms="fast"))
    for wrong, message in (({2: -1.0}, "negative"), ({3: 1.0}, "another width")):
        layer = Layer("a", (), (replace(_two().layers[0].candidates[0], warm_ms=wrong),))
        with pytest.raises(FormatError, match=message):
            check(replace(_two(), layers=(layer,)))


def _hesitant(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """The profiles as if whatever is slow in a cold start were fast when warm: every step with a choice switches."""

    def warmed(c: Candidate) -> Candidate:
        cold = sum(c.stages_ms("big")) + c.execute_ms[2]
        return replace(c, warm_ms=dict.fromkeys(c.execute_ms, 1.0 / cold))

    return tuple(
        replace(p, layers=tuple(replace(x, candidates=tuple(map(warmed, x.candidates))) for x in p.layers)) for p in profiles
    )


@pytest.fixture(scope="module")
def planned(planned_tiny: tuple[Path, str]) -> tuple[Path, dict[str, str]]:
    """A workspace with a plan of a small model, one with kernels for later runs, and what the command said of each."""
    folder, _ = planned_tiny
    measure = api.profile_model
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.chdir(folder)
        patch.setattr(api, "profile_model", lambda *given, **how: _hesitant(measure(*given, **how)))
        for name, options in (("plain", []), ("continuous", ["--continuous"])):
            done = CliRunner().invoke(app, [*PLAN_TINY, "-o", name, *options])
            assert done.exit_code == 0, done.output
            told[name] = done.output
    return folder, told


def test_a_plan_names_the_kernels_that_later_runs_switch_to(planned: tuple[Path, dict[str, str]]) -> None:
    folder, told = planned
    plain, made = (cold_plan(folder / name) for name in ("plain", "continuous"))
    assert plain.later == ()
    assert "later runs      with the kernels of the first one" in told["plain"]
    switching = [k for k, name in enumerate(made.warm) if name != made.cold[k]]
    assert switching
    assert f"later runs      {len(switching)} of {len(made.steps)} steps switch kernels" in told["continuous"]
    _, later = records_in(folder / "continuous")
    assert all(later[k] is not None for k in switching)


def test_runs_switch_to_the_warm_kernels(planned: tuple[Path, dict[str, str]]) -> None:
    folder, _ = planned
    done = CliRunner().invoke(app, ["run", str(folder / "continuous"), "--repeat", "12"])
    assert done.exit_code == 0, done.output
    assert "warm, what was left of them prepared first" in done.output
    assert "and 2 more, warm" in done.output
    assert "ms of 11\n" in done.output
    known = ort.InferenceSession(folder / "tiny.onnx", providers=["CPUExecutionProvider"])
    inputs = random_inputs(tiny())
    (wanted,) = known.run(None, inputs)
    with open_session(folder / "continuous") as session:
        assert session.continuous
        for _ in range(3):  # before the switch and after it
            (found,) = session.run(inputs).values()
            assert np.abs(found - wanted).max() <= 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize(("name", "setting"), [("plain", "edgeplan"), ("continuous", "edgeplan-continuous")])
def test_a_fresh_process_starts_as_it_was_planned(
    planned: tuple[Path, dict[str, str]], jobs: list[RunJob], name: str, setting: str
) -> None:
    done = CliRunner().invoke(app, ["run", str(planned[0] / name), "--cold"])
    assert done.exit_code == 0, done.output
    assert {job.setting for job in jobs} == {setting}
    assert "cold: " in done.output
