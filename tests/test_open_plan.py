"""Plan folders: of every kind opened by one function, shown by `edgeplan plan MODEL`, and handed over to a second processor."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import yaml
from streamed_models import plain_model, streamed, write_streamed_plan
from typer.testing import CliRunner

import edgeplan
from edgeplan import native
from edgeplan.chapters.cold_start.gpu.planned import plan_gpu_start
from edgeplan.cli.commands import app
from edgeplan.cli.front import print_front
from edgeplan.devices.config import load_device
from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError, FormatError, ParamsError
from edgeplan.front import COLD, CONTINUOUS, MEMORY, STOCK, Front, FrontPlan, plan_front
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.handover import HandoverSession
from edgeplan.opening import open_plan
from edgeplan.planning.document import Plan
from edgeplan.predictors.walking import Forest, Walk
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import LATER_NAME, PROGRAM_NAME, PlanFolder, read_folder, replacing, write_plan
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.program_file import HEADER, PROGRAM_BIN
from edgeplan.testing.engines import reference_outputs, require_close

KINDS = ("cold-start", "memory")  # a pair: tests/chapters/partition/test_partition_pair.py


@pytest.fixture(scope="module", autouse=True)
def _few_processes_of_a_front() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeplan.front._PROCESSES", 2)
        yield


@pytest.fixture
def plan(request: pytest.FixtureRequest, dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> Path:
    """A plan folder of the kind that the test is for."""
    folder = tmp_path / "plan"
    if request.param == "memory":
        return write_streamed_plan(dnnl, streamed(dnnl, "plain", tmp_path, 8192), folder).path
    b = GraphBuilder("net", (1, 3, 16, 16))
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    return build_plan_folder(dnnl, model, planned(model, graph, threads=1, sources=["cached_read"]), folder)


every = pytest.mark.parametrize("plan", KINDS, indirect=True)


@every
def test_a_plan_is_opened_with_next_to_nothing_imported(plan: Path) -> None:
    told = "import sys, edgeplan; edgeplan.open_plan(sys.argv[1]).close(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told, str(plan)], capture_output=True, text=True, check=True)
    dear = {"numpy", "msgspec", "typing", "pathlib", "re", "inspect", "logging", "json", "edgeplan.runtime.folder"}
    site = subprocess.run([sys.executable, "-c", "import sys; print(*sys.modules)"], capture_output=True, text=True, check=True)
    assert not (dear - set(site.stdout.split())) & set(done.stdout.split())


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"plan.json": '{"format_version":1,"mode":"isolated"}', "model.json": "{}", "weights.bin": ""}, "memory"),
        ({"plan.json": '{"format_version":1,"cpu":[]}', "pair.json": "{}", "costs.json": "{}"}, "partition"),
    ],
)
def test_plans_of_earlier_versions_are_refused_with_the_command_that_makes_them(
    tmp_path: Path, files: dict[str, str], kind: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FormatError, match="has another format") as caught:
        edgeplan.open_plan(tmp_path)
    assert caught.value.next_step.endswith(f"edgeplan plan {kind}")


@every
def test_a_later_format_and_a_folder_that_is_none_are_refused(plan: Path) -> None:
    path = plan / PROGRAM_BIN
    content = path.read_bytes()
    magic, version, *rest = HEADER.struct.unpack_from(content)
    path.write_bytes(HEADER.struct.pack(magic, version + 1, *rest) + content[HEADER.struct.size :])
    for folder, told in ((plan, "has another format"), (plan / "nowhere", "there is no plan folder")):
        with pytest.raises(FormatError, match=told):
            edgeplan.open_plan(folder)


def test_writing_that_fails_leaves_the_old_plan(tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    plan.mkdir()
    (plan / "plan.json").write_text("whole")

    def write() -> None:
        with replacing(plan) as building:
            (building / "plan.json").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(edgeplan.EdgeplanError, match="still works"):
        write()
    assert [(path.name, path.read_text()) for path in plan.iterdir()] == [("plan.json", "whole")]
    assert not list(plan.parent.glob(".planning-*"))


def test_a_library_that_is_not_there_is_to_be_built_and_one_of_other_sources_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not there, trees are walked by numpy."""
    with monkeypatch.context() as patch:
        patch.setattr(native, "PATH", str(tmp_path / "libedgeplan.so"))
        assert not native.is_built()
        with pytest.raises(DeviceError) as refused:
            native.library.__wrapped__()
        assert refused.value.next_step == "make native"
        leaf = {"feature": np.array([-1], np.int16), "value": np.ones(1), "child": np.zeros((1, 2), np.int32)}
        start = {"tree_start": np.array([0, 1], np.int32), "roots": np.zeros(1, np.int32)}
        assert Walk.of(Forest.from_arrays({**start, **leaf}, features=1), 0, 1) is None
    monkeypatch.setattr(native, "_ABI", native._ABI + 1)
    with pytest.raises(DeviceError, match="has version"):
        native.library.__wrapped__()


Edgeplan = Callable[..., Any]


def _plan(first: float, later: float, peak: int, kind: str = COLD) -> FrontPlan:
    return FrontPlan(kind, 1, first, later, peak, 0, ("cold-start",))


def test_goals_choose_among_all_plans() -> None:
    fast, steady, small = _plan(1.0, 9.0, 30), _plan(2.0, 3.0, 40, CONTINUOUS), _plan(1.5, 3.05, 20, MEMORY)
    front = Front("net.onnx", (fast, small, steady), _plan(0.5, 0.5, 10, STOCK), (), 0.0)
    assert [front.best(goal) for goal in ("first", "steady", "both")] == [fast, steady, small]


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file."""
    assert dnnl.info.version  # where the library is not there, what needs plans is skipped
    return save_onnx(plain_model(), tmp_path_factory.mktemp("front") / "plain.onnx")


@pytest.fixture(scope="module")
def front(model: Path) -> Front:
    """Its front, where a pair was asked for that is not there."""
    return plan_front(model, pair="pair-nowhere")


def test_each_plan_ran_and_what_its_budget_is_was_granted(front: Front) -> None:
    """A pair that is not there leaves the other plans."""
    assert any("no plan of pair-nowhere" in line for line in front.about)
    assert {plan.kind for plan in front.plans} >= {COLD, MEMORY}
    assert front.stock.kind == STOCK
    ways = (front.stock, *front.plans)
    # of each the least: threads that wait for one another are slow beside other work
    assert min(way.first_ms for way in ways) > min(way.later_ms for way in ways) > 0, (
        "a whole process is more than an inference"
    )
    for plan in ways:
        assert plan.peak_bytes > plan.budget_bytes
        assert (plan.kind == MEMORY) == (plan.budget_bytes > 0) == (plan.arguments[:1] == ("memory",))


def test_rows_are_written_by_the_commands_that_are_shown(
    edgeplan: Edgeplan,
    front: Front,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    print_front(front, [str(model), "--batch", "1"], ("--device", "cpu-onednn"))
    shown = re.findall(r"edgeplan plan (\S+) (.* -o plan)", capsys.readouterr().out)
    assert len(shown) == len(front.plans)
    for kind, words in shown:
        written = edgeplan("plan", kind, *shlex.split(words), folder=tmp_path)
        assert written.code == 0, written.err
        assert edgeplan("run", "plan", "--check", folder=tmp_path).code == 0


def test_the_command_writes_what_runs_for_a_goal(edgeplan: Edgeplan, model: Path, tmp_path: Path) -> None:
    fast = edgeplan("plan", str(model), "-o", str(tmp_path / "fast"))
    assert fast.code == 0, fast.err
    assert "ONNX Runtime" in fast.out
    assert edgeplan("run", str(tmp_path / "fast"), "--check").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("MODEL --for steady", "where: --output"),
        ("MODEL --for both --budget 10MiB -o plan", "edgeplan plan memory MODEL --budget 10MiB -o plan"),
        ("memroy", "memory"),  # is no file, and no model
    ],
)
def test_goals_without_a_folder_budgets_and_words_that_are_no_file_are_refused(
    edgeplan: Edgeplan, model: Path, tmp_path: Path, words: str, told: str
) -> None:
    found = edgeplan("plan", *words.replace("MODEL", str(model)).split(), folder=tmp_path)
    assert found.code in (2, ParamsError.exit_code)
    assert told.replace("MODEL", str(model)) in found.err + found.out
    assert not (tmp_path / "plan").exists()


_TOLERANCE = 1e-4
_MOST_SECONDS = 120


@dataclass(frozen=True)
class Planned:
    """A plan for both goals on a host and PoCL, PoCL's of another model, and the model's outputs on its random inputs."""

    folder: Path
    other: Path
    graph: Graph
    outputs: dict[str, Any]


def _graph(features: int) -> Graph:
    b = GraphBuilder("small", (1, 3, 16, 16))
    x = b.conv_bn(b.conv_bn(b.input, features, 3, 2), features, 3)
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    pytest.importorskip("pyopencl")
    folder = tmp_path_factory.mktemp("handover")
    cores = sorted(os.sched_getaffinity(0))
    first, core = cores[0], cores[-1]
    options = {"platform": "Portable Computing Language", "cores": str(core)}
    device = {"format_version": 1, "name": "opencl-here", "engine": "opencl", "cores": [core], "options": options}
    sides = [
        {"name": "cpu", "device": "cpu-onednn", "cores": [first]},
        {"name": "gpu", "device": "opencl-here", "cores": [core]},
    ]
    pair = {"format_version": 2, "name": "pair-here", "synchronisation": "events", "processors": sides}
    for kind, content in (("devices", device), ("pairs", pair)):
        (folder / "config" / kind).mkdir(parents=True)
        (folder / "config" / kind / f"{content['name']}.yaml").write_text(yaml.safe_dump(content))
    graph, other = _graph(32), save_onnx(_graph(48), folder / "other.onnx")
    model = str(save_onnx(graph, folder / "model.onnx"))
    given = ["plan", model, "--pair", "pair-here", "--for", "both", "-o", str(folder / "plan")]
    found = CliRunner().invoke(app, [*given, "--workspace", str(folder)])
    assert found.exit_code == 0, found.output
    assert "the faster one answers" in found.output
    plan_gpu_start(other, folder / "other", load_device(folder / "config/devices/opencl-here.yaml"))
    return Planned(folder / "plan", folder / "other", graph, reference_outputs(graph))


@pytest.fixture
def copy(handed: Planned, tmp_path: Path) -> Path:
    """A plan folder that may be damaged."""
    return Path(shutil.copytree(handed.folder, tmp_path / "plan", copy_function=shutil.copy2))


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


def _run_checked(session: Session, handed: Planned, times: int) -> None:
    inputs = random_inputs(handed.graph)
    for _ in range(times):
        require_close(session.run(inputs), handed.outputs, _TOLERANCE)


@pytest.mark.parametrize(("host_s", "later_s", "hands_over"), [(0.3, 0.0, True), (0.0, 0.3, False)])
def test_the_faster_processor_answers_and_every_answer_is_right(
    handed: Planned, host_s: float, later_s: float, hands_over: bool
) -> None:
    before = os.sched_getaffinity(0)
    with _opened(handed.folder, host_s, later_s) as session:
        _run_checked(session, handed, 1)
        assert session.cold_ms > 0
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, handed, 8)
        assert (session.handed_over == 8) == hands_over, session.stayed_because
        assert bool(session.stayed_because) != hands_over
        assert session.cold_ms > 0
        assert session.stages_ms()
    assert os.sched_getaffinity(0) == before


def _damage(folder: Path, _: Planned) -> None:
    path = folder / LATER_NAME / PROGRAM_NAME
    path.write_bytes(path.read_bytes() + b" ")


def _of_another(folder: Path, handed: Planned) -> Path:
    path = folder / LATER_NAME
    shutil.rmtree(path)
    return Path(shutil.copytree(handed.other, path, copy_function=shutil.copy2))


def _of_other_values(folder: Path, handed: Planned) -> None:
    """Another model's plan under this model's digest: it runs, and answers otherwise."""
    path = _of_another(folder, handed)
    plan = read_folder(path)
    made_for = msgspec.structs.replace(plan.made_for, model_sha256=read_folder(folder).made_for.model_sha256)
    write_plan(path, plan.kind, made_for, plan.schedule, plan.prediction, tuple(plan.files))


@pytest.mark.parametrize("harm", [_damage, _of_other_values])
def test_a_later_plan_that_fails_or_differs_costs_no_answer(
    handed: Planned, copy: Path, harm: Callable[[Path, Planned], None]
) -> None:
    harm(copy, handed)
    with open_plan(copy) as session:
        assert isinstance(session, HandoverSession)
        _run_checked(session, handed, 1)
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, handed, 8)
        assert "later plan" in session.stayed_because
        assert session.handed_over == 0


def test_a_later_plan_of_another_model_is_refused(handed: Planned, copy: Path) -> None:
    _of_another(copy, handed)
    with pytest.raises(FormatError, match="another model"):
        open_plan(copy)


def test_closing_at_any_moment_ends_the_later_start_and_a_run_tells_who_answered(handed: Planned) -> None:
    for runs in (0, 1, 2):
        session = open_plan(handed.folder)
        _run_checked(session, handed, runs)
        session.close()
    found = run(handed.folder, random_inputs(handed.graph), repeat=2)
    require_close(found.outputs, handed.outputs, _TOLERANCE)
    assert found.handed_over == 0
    printed = CliRunner().invoke(app, ["run", str(handed.folder), "--repeat", "2", "--check"])
    assert printed.exit_code == 0, printed.output


def test_a_later_plan_that_fails_in_its_turns_costs_no_answer(handed: Planned) -> None:
    class Failing(_Slowed):
        runs = 0

        def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
            self.runs += 1
            if self.runs > 1:
                raise DeviceError("the device is gone", next_step="look for it")
            return super().run(inputs)

    with _opened(handed.folder, 0.0, 0.0, Failing) as session:
        assert not session.wait(), "nothing is begun that could be waited for"
        _run_checked(session, handed, 1)
        assert session.wait(_MOST_SECONDS)
        _run_checked(session, handed, 4)
        assert "the device is gone" in session.stayed_because
