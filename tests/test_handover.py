"""A cold start that goes over to a second processor: outputs stay those of the model, whatever becomes of the later plan."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml
from shipped_params import PARAMS_FILE
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.handover import HandoverSession
from edgeplan.opening import open_plan
from edgeplan.runs import run
from edgeplan.runtime.folder import LATER_NAME, PROGRAM_NAME, PlanFolder, read_folder, write_plan
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.plan_session import Session
from edgeplan.testing.engines import reference_outputs, require_close

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="pyopencl is an extra")
_TOLERANCE = 1e-4
_MOST_SECONDS = 120


@dataclass(frozen=True)
class Planned:
    """A plan for both goals on a host and PoCL, with the model's outputs on its random inputs."""

    folder: Path
    other: Path
    graph: Graph
    outputs: dict[str, Any]


def _graph(features: int) -> Graph:
    b = GraphBuilder("small", (1, 3, 16, 16))
    x = b.conv_bn(b.conv_bn(b.input, features, 3, 2), features, 3)
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder = tmp_path_factory.mktemp("handover")
    core = max(os.sched_getaffinity(0))
    device = {"format_version": 1, "name": "opencl-here", "engine": "opencl", "cores": [core]}
    device["options"] = {"platform": "Portable Computing Language", "cores": str(core)}
    config = folder / "config"
    for kind, name, content in (
        ("devices", "opencl-here", device),
        ("pairs", "pair-here", {
            "format_version": 2, "name": "pair-here", "synchronisation": "events",
            "processors": [
                {"name": "cpu", "device": "cpu-onednn", "cores": [min(os.sched_getaffinity(0))]},
                {"name": "gpu", "device": "opencl-here", "cores": [core]},
            ],
        }),
    ):  # fmt: skip
        (config / kind).mkdir(parents=True)
        (config / kind / f"{name}.yaml").write_text(yaml.safe_dump(content))
    shutil.copy2(Path(__file__).parents[1] / "config/devices/cpu-onednn.yaml", config / "devices")
    shutil.copy2(PARAMS_FILE, folder)
    made = {}
    for features in (32, 48):
        save_onnx(_graph(features), folder / f"{features}.onnx")
        given = ["plan", str(folder / f"{features}.onnx"), "--pair", "pair-here", "--for", "both"]
        found = CliRunner().invoke(app, [*given, "-o", str(folder / f"plan-{features}"), "--workspace", str(folder)])
        assert found.exit_code == 0, found.output
        assert "the faster one answers" in found.output
        made[features] = folder / f"plan-{features}"
    graph = _graph(32)
    return Planned(made[32], made[48], graph, reference_outputs(graph))


@pytest.fixture
def copy(planned: Planned, tmp_path: Path) -> Path:
    """A plan folder that may be damaged."""
    return Path(shutil.copytree(planned.folder, tmp_path / "plan", copy_function=shutil.copy2))


class _Slowed:
    """A session that takes longer than it has to."""

    def __init__(self, session: Any, seconds: float) -> None:
        self._session, self._seconds = session, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(self._seconds)
        found: dict[str, Any] = self._session.run(inputs)
        return found


def _opened(folder: Path, host_s: float, later_s: float, kind: type[_Slowed] = _Slowed) -> HandoverSession:
    def later(found: PlanFolder) -> Session:
        return cast("Session", kind(open_plan(found), later_s))

    return HandoverSession(folder, lambda: cast("NativeSession", _Slowed(open_session(folder), host_s)), later)


def _run_checked(session: Session, planned: Planned, times: int) -> None:
    inputs = random_inputs(planned.graph)
    for _ in range(times):
        require_close(session.run(inputs), planned.outputs, _TOLERANCE)


@pytest.mark.parametrize(("host_s", "later_s", "hands_over"), [(0.3, 0.0, True), (0.0, 0.3, False)])
def test_the_faster_processor_answers_and_every_answer_is_right(
    planned: Planned, host_s: float, later_s: float, hands_over: bool
) -> None:
    before = os.sched_getaffinity(0)
    with _opened(planned.folder, host_s, later_s) as session:
        _run_checked(session, planned, 1)
        assert session.cold_ms > 0
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, planned, 8)
        assert (session.handed_over == 8) == hands_over, session.stayed_because
        assert bool(session.stayed_because) != hands_over
        assert session.cold_ms > 0
        assert session.stages_ms()
    assert os.sched_getaffinity(0) == before


def _damage(folder: Path) -> None:
    path = folder / LATER_NAME / PROGRAM_NAME
    path.write_bytes(path.read_bytes() + b" ")


def _of_other_values(folder: Path, planned: Planned) -> None:
    """Another model's plan under this model's digest: it runs, and answers otherwise."""
    shutil.rmtree(folder / LATER_NAME)
    shutil.copytree(planned.other / LATER_NAME, folder / LATER_NAME, copy_function=shutil.copy2)
    path = folder / LATER_NAME
    plan = read_folder(path)
    made_for = msgspec.structs.replace(plan.made_for, model_sha256=read_folder(folder).made_for.model_sha256)
    write_plan(path, plan.kind, made_for, plan.schedule, plan.prediction, tuple(plan.files))


@pytest.mark.parametrize("harm", [lambda folder, _: _damage(folder), _of_other_values])
def test_a_later_plan_that_fails_or_differs_costs_no_answer(
    planned: Planned, copy: Path, harm: Callable[[Path, Planned], None]
) -> None:
    harm(copy, planned)
    with open_plan(copy) as session:
        assert isinstance(session, HandoverSession)
        _run_checked(session, planned, 1)
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, planned, 8)
        assert "later plan" in session.stayed_because
        assert session.handed_over == 0


def test_a_later_plan_of_another_model_is_refused(planned: Planned, copy: Path) -> None:
    shutil.rmtree(copy / LATER_NAME)
    shutil.copytree(planned.other / LATER_NAME, copy / LATER_NAME, copy_function=shutil.copy2)
    with pytest.raises(FormatError, match="another model"):
        open_plan(copy)


def test_closing_at_any_moment_ends_the_later_start_and_a_run_tells_who_answered(planned: Planned) -> None:
    for runs in (0, 1, 2):
        session = open_plan(planned.folder)
        _run_checked(session, planned, runs)
        session.close()
    found = run(planned.folder, random_inputs(planned.graph), repeat=2)
    require_close(found.outputs, planned.outputs, _TOLERANCE)
    assert found.handed_over == 0
    printed = CliRunner().invoke(app, ["run", str(planned.folder), "--repeat", "2", "--check"])
    assert printed.exit_code == 0, printed.output


def test_a_later_plan_that_fails_in_its_turns_costs_no_answer(planned: Planned) -> None:
    class Failing(_Slowed):
        runs = 0

        def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            self.runs += 1
            if self.runs > 1:
                raise DeviceError("the device is gone", next_step="look for it")
            return super().run(inputs)

    with _opened(planned.folder, 0.0, 0.0, Failing) as session:
        assert not session.wait(), "nothing is begun that could be waited for"
        _run_checked(session, planned, 1)
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, planned, 4)
        assert "the device is gone" in session.stayed_because
