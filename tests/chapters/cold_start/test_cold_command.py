"""`edgeplan plan cold-start`: it writes a plan, and refuses what it cannot plan before it measures."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from plan_folders import cold_plan, records_in
from tiny_profiled import PLAN_TINY, git, own_state, tiny  # noqa: F401  a fixture
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.errors import BusyError, EdgeplanError, ModelError, ParamsError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import check_fits
from edgeplan.profiling import profiler
from edgeplan.profiling.profiler import LOCK_SECONDS
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower


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


@pytest.mark.parametrize("limit", ["-1", "nan", "1e7"])
def test_limits_that_are_none_are_refused_before_any_work(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    done = CliRunner().invoke(app, [*PLAN_TINY, "--cache-limit", limit])
    assert isinstance(done.exception, ParamsError)
    assert done.exception.where == "--cache-limit"
    assert not (tmp_path / "plan").exists()


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
