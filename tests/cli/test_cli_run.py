"""Runs of asymmetric plans: the cores that they take, in this process and in fresh ones, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_profiled import tiny
from typer.testing import CliRunner, Result

from edgeplan.cli import app
from edgeplan.errors import DeviceError, ParamsError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime import native_session
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import NativeSession
from edgeplan.runtime.plan_folder import build_plan_folder

Lanes = list[tuple[int, ...]]


@pytest.fixture
def pair() -> Iterator[tuple[int, int]]:
    """Two processors, the lower number first; what this thread may use is put back."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("one processor only")
    first, second, *_ = sorted(before)
    yield first, second
    os.sched_setaffinity(0, before)


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/devices").mkdir(parents=True)
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    plan = planned(model, tiny(), widen_from=-1, equal_cores=False, little_ratio=1.5, threads=1)
    return build_plan_folder(dnnl, model, plan, tmp_path / "plan")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Lanes:
    """The processors that every session was given, those that execute first, and that it takes."""
    found: Lanes = []
    real = native_session.open_session

    def spy(folder: Path, **how: Any) -> NativeSession:
        session = real(folder, **how)
        found.append(tuple(how["processors"]) or tuple(sorted(os.sched_getaffinity(0))))
        assert os.sched_getaffinity(0) == set(found[-1])
        return session

    monkeypatch.setattr(native_session, "open_session", spy)
    return found


def _device(**fields: object) -> None:
    document = {"format_version": 1, "name": "dev", "engine": "onednn", **fields}
    Path("config/devices/dev.yaml").write_text(yaml.safe_dump(document))


def _run(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", str(folder), *arguments])


def _refused(what: str, folder: Path, **how: Any) -> None:
    with pytest.raises(DeviceError, match=what) as caught:
        run(folder, **how)
    assert caught.value.where
    assert caught.value.next_step


def test_without_a_device_the_next_processor_prepares(folder: Path, pair: tuple[int, int], seen: Lanes) -> None:
    before = os.sched_getaffinity(0)
    run(folder)
    assert seen == [pair]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("swapped", [False, True])
def test_a_device_names_the_cores(folder: Path, pair: tuple[int, int], seen: Lanes, swapped: bool) -> None:
    big, little = reversed(pair) if swapped else pair
    _device(big_cores=[big], little_cores=[little], little_ratio=1.5)
    run(folder, device="dev")
    assert seen == [(big, little)]


def test_a_fresh_process_takes_the_same_cores(folder: Path, pair: tuple[int, int], jobs: list[RunJob]) -> None:
    _device(big_cores=[pair[0]], little_cores=[pair[1]], little_ratio=1.5)
    for arguments in ((), ("--device", "dev")):
        done = _run(folder, "--cold", *arguments)
        assert done.exit_code == 0, done.output
        assert "cold: " in done.output
    assert [job.cpus for job in jobs] == [pair] * 2


def test_a_warm_run_has_no_evicted_page_cache(folder: Path) -> None:
    done = _run(folder, "--evicted")
    assert isinstance(done.exception, ParamsError)
    assert "add --cold" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "commands"),
    [
        (["a", "b"], "edgeplan run a; edgeplan run b"),
        (["a", "b", "-b", "64MiB"], "edgeplan run a --budgets 64MiB; edgeplan run b --budgets 64MiB"),
        (["a", "--budget", "64MiB"], "edgeplan run a --budgets 64MiB"),
    ],
)
def test_several_plans_and_one_budget_of_all_are_refused_with_a_command_for_each(arguments: list[str], commands: str) -> None:
    done = CliRunner().invoke(app, ["run", *arguments])
    assert isinstance(done.exception, ParamsError)
    assert done.exception.where.startswith("a")
    assert done.exception.next_step == f"run each by itself: {commands}"


def test_cores_that_a_fresh_process_would_confuse_are_refused(folder: Path, pair: tuple[int, int]) -> None:
    _device(big_cores=[pair[1]], little_cores=[pair[0]], little_ratio=1.5)
    _refused(f"little core {pair[0]} is numbered below big core {pair[1]}", folder, cold=True, device="dev")


@pytest.mark.parametrize("cold", [False, True])
def test_too_few_processors_are_refused(folder: Path, pair: tuple[int, int], cold: bool) -> None:
    os.sched_setaffinity(0, pair[:1])
    _refused("needs 1 processors to execute and 1 beside them to prepare, there are 1 and 0", folder, cold=cold)


def test_devices_that_do_not_fit_are_refused(folder: Path, pair: tuple[int, int]) -> None:
    _refused("unknown device", folder, device="nosuch")
    _device(big_cores=list(pair))
    _refused("the device has 2", folder, device="dev")
    _device(big_cores=[pair[0]], little_cores=[4096])
    _refused("core 4096 does not exist", folder, device="dev")


def test_plans_for_equal_cores_need_all_of_them(
    dnnl: Dnnl, planned: Callable[..., Plan], folder: Path, pair: tuple[int, int]
) -> None:
    model = folder.parent / "tiny.onnx"
    equal = build_plan_folder(dnnl, model, planned(model, tiny()), folder.parent / "equal")
    assert run(equal).outputs
    os.sched_setaffinity(0, pair[1:])
    _refused("needs 2 processors to execute and 0 beside them to prepare, there are 1 and 0", equal)
