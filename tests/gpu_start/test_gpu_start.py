"""Cold starts on a GPU, PoCL or NVIDIA: what is planned is executed; what is stale, damaged or elsewhere changes no output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from edgeplan.chapters.cold_start.gpu.planned import GpuPlan, GpuPlanning, planning_on
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, KEPT, KERNELS, OPTIMAL, STOCK, WARM
from edgeplan.cli.commands import app
from edgeplan.cuda.driver import Driver
from edgeplan.devices.config import load_device
from edgeplan.engines.base import random_inputs
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.errors import DeviceError, FormatError, ModelError
from edgeplan.gpu_start.files import CodeCache, write_codes
from edgeplan.gpu_start.session import GpuSession, launch_of, open_gpu
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.gpu_starts import GpuStartJob, start_gpu
from edgeplan.opencl.building import ProgramSource
from edgeplan.opening import open_plan
from edgeplan.runs import run
from edgeplan.runtime.folder import GPU_START, PLAN_NAME, read_folder, write_plan
from edgeplan.runtime.gpu_program import CODE_NAME, GpuPrediction, GpuProgram, GpuSchedule
from edgeplan.testing.engines import reference_outputs, require_close

ROOT = Path(__file__).parents[2]
_TOLERANCE = 1e-4


def _device(engine: str, folder: Path) -> Path:
    """The file of a device here."""
    options: dict[str, str] = {}
    if engine == "cuda":
        try:
            Driver()
        except DeviceError as error:
            pytest.skip(error.what)
    elif find_spec("pyopencl") is None:
        pytest.skip("pyopencl is an extra")
    else:
        options = {"platform": "Portable Computing Language", "cores": str(max(os.sched_getaffinity(0)))}
    path = folder / f"{engine}-here.yaml"
    path.write_text(yaml.safe_dump({"format_version": 1, "name": path.stem, "engine": engine, "options": options}))
    return path


def _graph() -> Graph:
    b = GraphBuilder("small", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 32, 3, 2)
    x = b.add(b.conv_bn(x, 32, 3, act=""), x)
    x = b.maxpool(b.relu(x), 3, 2)
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


@dataclass(frozen=True)
class Planned:
    """A small model with its plans by planner, and its outputs on its random inputs."""

    device: Path
    model: Path
    graph: Graph
    plans: dict[str, GpuPlan]
    outputs: dict[str, Any]


@pytest.fixture(scope="module", params=["opencl", "cuda"])
def planned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Planned:
    folder = tmp_path_factory.mktemp("gpu")
    device, graph = _device(str(request.param), folder), _graph()
    model = save_onnx(graph, folder / "small.onnx")
    found = load_device(device)
    with planning_on(found) as (processor, block):
        planning = GpuPlanning(found, model, processor, block)
        plans = {name: planning.write(name, folder / f"{name}.plan") for name in GPU_PLANNERS}
    return Planned(device, model, graph, plans, reference_outputs(graph))


@pytest.fixture
def copy(planned: Planned, tmp_path: Path) -> Path:
    """A plan folder that may be damaged."""
    return Path(shutil.copytree(planned.plans[OPTIMAL].folder, tmp_path / "plan", copy_function=shutil.copy2))


def _check(session: GpuSession, planned: Planned) -> None:
    inputs = random_inputs(planned.graph)
    for _ in range(2):
        require_close(session.run(inputs), planned.outputs, _TOLERANCE)


def _opened(folder: Path) -> GpuSession:
    return cast("GpuSession", open_plan(folder))


@pytest.mark.parametrize("name", [OPTIMAL, WARM, KERNELS, KEPT, STOCK])
def test_every_plan_computes_what_the_model_does_cold_and_warm(planned: Planned, name: str) -> None:
    with _opened(planned.plans[name].folder) as session:
        assert isinstance(session, GpuSession)
        _check(session, planned)
        assert session.cold_ms > 0
        assert not session.code_problem
        stages = session.stages_ms()
        assert ("pack" in stages) == bool(session.program.files_read), "kept weights are not packed again"
        assert (session.program.packed_bytes == 0) == (name in (KERNELS, STOCK))


def test_the_optimal_plan_is_proven_and_no_plan_is_predicted_faster(planned: Planned) -> None:
    found = {name: read_folder(made.folder).predicted(GpuPrediction) for name, made in planned.plans.items()}
    assert 0 <= found[OPTIMAL].gap <= 0.01
    assert found[OPTIMAL].makespan_ms <= min(one.makespan_ms for one in found.values()) + 1e-6


def test_a_fresh_process_starts_a_plan_and_tells_its_parts(planned: Planned, tmp_path: Path) -> None:
    inputs, outputs = tmp_path / "in.npz", tmp_path / "out.npz"
    np.savez(inputs, **random_inputs(planned.graph))
    result = start_gpu(GpuStartJob(str(planned.plans[OPTIMAL].folder), str(inputs), str(outputs), warm_runs=2))
    assert result.library_ms > 0
    assert result.context_ms > 0
    assert result.cold_ms > 0
    assert len(result.warm_ms) == 2
    assert not result.code_problem
    assert result.cached_before == 1.0
    with np.load(outputs) as found:
        require_close({name: found[name] for name in found.files}, planned.outputs, _TOLERANCE)


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _flip_in_code(folder: Path) -> None:
    _flip(folder / CODE_NAME, (folder / CODE_NAME).stat().st_size // 2)


#: What is done to the code of a plan; whole codes of another driver are not even tried, forged ones name this driver.
_HARMS: dict[str, Callable[[Path], object]] = {
    "flipped": _flip_in_code,
    "cut short": lambda folder: os.truncate(folder / CODE_NAME, (folder / CODE_NAME).stat().st_size - 100),
    "damaged head": lambda folder: _flip(folder / CODE_NAME, 0),
    "removed": lambda folder: (folder / CODE_NAME).unlink(),
    "of another driver": lambda folder: write_codes(folder / CODE_NAME, "another", dict.fromkeys(_sources(folder), b"code")),
    "forged": lambda folder: write_codes(folder / CODE_NAME, _identity(folder), dict.fromkeys(_sources(folder), b"no code")),
}


def _sources(folder: Path) -> list[Any]:
    program = cast("GpuProgram", read_folder(folder).program)
    with open_gpu(program.device).processor as processor:
        return [processor.source_of(launch_of(launch)) for step in program.steps for launch in step.launches]


def _identity(folder: Path) -> str:
    with open_gpu(cast("GpuProgram", read_folder(folder).program).device).processor as processor:
        return processor.code_identity


@pytest.mark.parametrize("harm", _HARMS)
def test_code_that_is_stale_or_damaged_is_compiled_again_and_written_again(planned: Planned, copy: Path, harm: str) -> None:
    _HARMS[harm](copy)
    with _opened(copy) as session:
        _check(session, planned)
        assert session.code_problem
    with _opened(copy) as session:
        _check(session, planned)
        assert not session.code_problem, "it was written again"


def test_codes_are_found_by_source_and_driver_alone(planned: Planned, tmp_path: Path) -> None:
    first, *others = dict.fromkeys(_sources(planned.plans[OPTIMAL].folder))
    write_codes(tmp_path / "codes", "this driver", {first: b"its code"})
    here = CodeCache(tmp_path / "codes", "this driver")
    assert here.get(first) == b"its code"
    assert [here.get(other) for other in others] == [None] * len(others)
    assert CodeCache(tmp_path / "codes", "that driver").get(first) is None
    changed = msgspec.structs.replace(first, text=f"{first.text} ")
    assert here.get(changed) is None


def test_kept_code_holds_each_work_group_of_the_plan(planned: Planned) -> None:
    """PoCL compiles for a work group when a kernel first runs with it, and names the two in its binaries."""
    folder = planned.plans[OPTIMAL].folder
    program = cast("GpuProgram", read_folder(folder).program)
    if program.device.engine != "opencl":
        pytest.skip("a cubin is for any work group")
    codes = CodeCache(folder / CODE_NAME, _identity(folder))
    launches = [launch_of(launch) for step in program.steps for launch in step.launches]
    for launch, source in zip(launches, _sources(folder), strict=True):
        group = "-".join(map(str, (*launch.local_size, 1, 1)[:3]))
        code = codes.get(source)
        assert code is not None
        assert f"{launch.kernel}/{group}-goffs0".encode() in code
    groups: dict[object, set[object]] = {}
    for launch in launches:
        groups.setdefault((launch.source, launch.defines, launch.kernel), set()).add(launch.local_size)
    assert max(map(len, groups.values())) > 1, "a kernel of this model runs with two work groups"


def test_a_model_that_was_changed_is_refused_where_its_weights_are_read(planned: Planned, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(planned.plans[STOCK].folder, tmp_path / "plan"))
    program = cast("GpuProgram", read_folder(folder).program)
    moved = tmp_path / "elsewhere.onnx"
    moved.write_bytes(planned.model.read_bytes()[:-1])
    changed = msgspec.structs.replace(program.files[0], path=str(moved))
    _rewrite(folder, msgspec.structs.replace(program, files=(changed,)))
    with pytest.raises(ModelError, match="was changed since it was planned"):
        _opened(folder)


def _rewrite(folder: Path, program: GpuProgram | None = None, schedule: GpuSchedule | None = None, **made_for: Any) -> None:
    found = read_folder(folder)
    if program is not None:
        (folder / "program.json").write_bytes(msgspec.json.encode(program))
    made = msgspec.structs.replace(found.made_for, **made_for)
    scheduled = schedule or found.scheduled(GpuSchedule)
    write_plan(folder, GPU_START, made, scheduled, msgspec.json.decode(found.prediction), tuple(found.files))


@pytest.mark.parametrize("field", ["driver", "machine", "library"])
def test_a_plan_for_something_else_is_refused(copy: Path, field: str) -> None:
    _rewrite(copy, **{field: "something else"})
    with pytest.raises(FormatError, match=f"{field} is .*, the plan is for something else"):
        _opened(copy)


def test_a_device_that_is_not_here_is_named(copy: Path) -> None:
    program = cast("GpuProgram", read_folder(copy).program)
    absent, told = {
        "opencl": ({"platform": "no such platform"}, "no OpenCL device '' on a platform 'no such platform'"),
        "cuda": ({"device": "99"}, "INVALID_DEVICE"),
    }[program.device.engine]
    device = msgspec.structs.replace(program.device, options=absent)
    _rewrite(copy, msgspec.structs.replace(program, device=device))
    with pytest.raises(DeviceError, match=told):
        _opened(copy)


def _all_at_once(folder: Path) -> None:
    """Have a plan's weights go up in one go, whatever was planned."""
    steps = range(len(cast("GpuProgram", read_folder(folder).program).steps))
    _rewrite(folder, schedule=GpuSchedule((tuple(steps),), at_once=True))


@pytest.mark.parametrize("evicted", [False, True])
def test_weights_that_go_up_in_one_go_are_those_of_each_step(
    planned: Planned, copy: Path, monkeypatch: pytest.MonkeyPatch, *, evicted: bool
) -> None:
    """Also chunk by chunk, where the file is not in memory."""
    _all_at_once(copy)
    if evicted:
        monkeypatch.setattr("edgeplan.gpu_start.session._CHUNK_BYTES", 4096)
        monkeypatch.setattr("edgeplan.gpu_start.session.in_memory", lambda *_, **__: False)
    with _opened(copy) as session:
        _check(session, planned)
        stages = session.stages_ms()
        assert {"upload", "code", "wait"} >= stages.keys() - {"run"}, "no weights are read or packed step by step"


class _Merging(OpenclProcessor):
    """PoCL as a driver that takes the code of all sources as one program."""

    #: What was done with such programs, in order, and what they were made of.
    done: ClassVar[list[str]] = []
    parts: ClassVar[dict[ProgramSource, tuple[ProgramSource, ...]]] = {}

    def merged(self, sources: Sequence[ProgramSource]) -> ProgramSource:
        whole = ProgramSource("whole", "\n".join(str((one.text, one.options)) for one in sources), ())
        self.parts[whole] = tuple(sources)
        return whole

    def code_of(self, asked: ProgramSource) -> bytes:
        if asked not in self.parts:
            return super().code_of(asked)
        return msgspec.json.encode([self.code_of(one) for one in self.parts[asked]])

    def compile(self, asked: ProgramSource) -> None:
        self.done.extend(["compile"] * (asked in self.parts))
        for one in self.parts.get(asked, (asked,)):
            super().compile(one)

    def load(self, asked: ProgramSource, code: bytes) -> None:
        if asked not in self.parts:
            super().load(asked, code)
            return
        self.done.append("load")
        for one, binary in zip(self.parts[asked], msgspec.json.decode(code, type=list[bytes]), strict=True):
            super().load(one, binary)

    def take_from(self, whole: ProgramSource, sources: Sequence[ProgramSource]) -> None:
        assert self.parts[whole] == tuple(sources)
        self.done.append("take")


def test_a_driver_that_takes_all_code_as_one_program_has_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.gpu_start.session.gpu_class", lambda _: _Merging)
    device, graph = _device("opencl", tmp_path), _graph()
    found, model = load_device(device), save_onnx(graph, tmp_path / "small.onnx")
    with planning_on(found) as (processor, block):
        planning = GpuPlanning(found, model, processor, block)
        made = {name: planning.write(name, tmp_path / f"{name}.plan") for name in (OPTIMAL, KEPT)}
    assert [made[name].schedule.at_once for name in (OPTIMAL, KEPT)] == [True, False], "the ablation is as it was"
    assert 0 <= made[OPTIMAL].prediction.gap <= 0.01
    planned = Planned(device, model, graph, made, reference_outputs(graph))
    folder = made[OPTIMAL].folder
    _Merging.done.clear()
    with _opened(folder) as session:
        _check(session, planned)
        assert not session.code_problem
    assert _Merging.done == ["load", "take"]
    _flip_in_code(folder)
    with _opened(folder) as session:
        _check(session, planned)
        assert session.code_problem
    assert _Merging.done == ["load", "take", "compile", "take"]
    with _opened(folder) as session:
        _check(session, planned)
        assert not session.code_problem, "it was written again, as one program"


@pytest.mark.parametrize("queues", [((),), ((0, 0),), ((0,), (1,))])
def test_a_schedule_that_does_not_prepare_each_step_once_is_refused(copy: Path, queues: Any) -> None:
    _rewrite(copy, schedule=GpuSchedule(queues))
    with pytest.raises(FormatError, match="do not prepare each step once"):
        _opened(copy)


@pytest.mark.parametrize("at_once", [False, True])
def test_an_error_of_preparing_or_uploading_ends_the_inference(
    planned: Planned, copy: Path, monkeypatch: Any, *, at_once: bool
) -> None:
    def refuse(*_: Any) -> None:
        raise ModelError("the disk is gone")

    if at_once:
        _all_at_once(copy)
    for name in ("read_packed", "map_packed"):
        monkeypatch.setattr(f"edgeplan.gpu_start.files.WeightFiles.{name}", refuse)
    with _opened(copy) as session, pytest.raises(ModelError, match="the disk is gone"):
        session.run(random_inputs(planned.graph))


def test_a_model_that_the_device_cannot_run_says_which_step(planned: Planned, tmp_path: Path) -> None:
    b = GraphBuilder("recurrent", (5, 1, 8))
    model = save_onnx(b.build(b.lstm(b.input, 8)), tmp_path / "recurrent.onnx")
    found = load_device(planned.device)
    with (
        planning_on(found) as (processor, block),
        pytest.raises(ModelError, match="no kernel of the device runs steps of kind"),
    ):
        GpuPlanning(found, model, processor, block)


def test_the_commands_plan_and_run(planned: Planned, tmp_path: Path) -> None:
    runner, folder = CliRunner(), tmp_path / "made.plan"
    command = ["plan", "cold-start", str(planned.model), "-o", str(folder), "--device", str(planned.device)]
    made = runner.invoke(app, command)
    assert made.exit_code == 0, made.output
    assert "gap" in made.output
    refused = runner.invoke(app, [*command, "--continuous"])
    assert refused.exit_code != 0
    assert (folder / PLAN_NAME).is_file()
    found = run(folder, repeat=2, check=True)
    assert found.difference is not None
    assert found.difference <= _TOLERANCE
    assert len(found.warm_ms) == 1
    assert len(run(folder, cold=True).cold_ms) == 1
