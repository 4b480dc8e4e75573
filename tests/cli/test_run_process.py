"""`edgeplan run` becomes edgeplan-run, which holds the session and nothing else, and stays within idle and budget."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, cast

import numpy as np
import pytest
from model_file_runs import made, node, values, write
from plan_folders import COMMAND, HEAVY, OPENED, loaded_by
from streamed_models import least, middle, streamed, write_streamed_plan

from edgeplan import plan_memory
from edgeplan.chapters.memory.budget import budget_sizes
from edgeplan.errors import InfeasibleError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runs import run_budgets
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, read_folder
from edgeplan.runtime.installed import PROGRAM, words_for
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of
from edgeplan.runtime.streaming.schedules import MemoryPrediction, MemorySchedule

LANE = "processes"  # see tests/conftest.py

_MIB = 1 << 20
#: What a plan is handed over without, beside what no process that runs plans loads.
_HEAVY = (*HEAVY, "numpy", "typer", "rich", "msgspec", "argparse", "logging", "ctypes", "typing")


def measured(plan: Path, repeat: int = 3, budgets: str = "") -> tuple[int, float]:
    """Bytes of a run of a plan that is ready to open it, and the most from there on by these and the largest of the budgets."""
    asked = ["--budgets", budgets] if budgets else []
    own = read_folder(plan, MEMORY).scheduled(MemorySchedule).budget_bytes
    budget = max(budget_sizes(budgets.split(","))) if budgets else own
    with tempfile.TemporaryDirectory() as folder:
        gate, peak = Path(folder) / "gate", 0
        command = [PROGRAM, *words_for(str(plan), str(repeat)), "--gate", str(gate), *asked]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = cast("TextIO", run.stderr)
        assert said.readline() == "ready\n", said.read()
        floor = _resident(run.pid)
        gate.touch()
        while run.poll() is None:
            peak = max(peak, _resident(run.pid))
            time.sleep(0.001)
        assert not run.returncode, said.read()
    return floor, peak / (floor + budget)


def _resident(process: int) -> int:
    """Bytes of all pages; none of a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


def _saved(path: Path, *, chosen: bool) -> Path:
    """A convolution, and behind it a step that is compiled (Greater, Where) or one that is not."""
    nodes, weights = [node("Conv", "x w", "h")], {"w": values(64, 32, 3, 3)}
    if chosen:
        nodes += [node("Greater", "h z", "c"), node("Where", "c h z")]
        weights["z"] = values() * 0
    else:
        nodes += [node("Relu", "h")]
    return write(made(nodes, {"x": (1, 32, 16, 16)}, weights), path)


@pytest.fixture(scope="module")
def plans(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """Plans of memory of a model with a compiled step, and of one without."""
    assert dnnl.info.version  # where the library is not there, what needs plans is skipped
    folder = tmp_path_factory.mktemp("plans")
    found = {}
    for chosen in (True, False):
        found[chosen] = folder / f"plan-{chosen}"
        plan_memory(_saved(folder / f"{chosen}.onnx", chosen=chosen), found[chosen], "16MiB")
    return found


def test_a_plan_is_handed_over_with_next_to_nothing_imported(plans: dict[bool, Path]) -> None:
    command = [sys.executable, "-X", "importtime", "-c", f"import sys; {COMMAND}", "run", plans[True]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("made: 3 steps")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "edgeplan.cli.native_run" in imported
    assert not imported & set(_HEAVY)


def test_a_process_around_a_plan_loads_neither_compilers_nor_readers_of_models(
    dnnl: Dnnl, planned: Callable[..., Plan], plans: dict[bool, Path], tmp_path: Path
) -> None:
    """Nor does one that opens a plan from Python."""
    assert loaded_by(COMMAND, "run", plans[True], "--check", "--repeat", "2", "-o", tmp_path / "y.npz") == []
    assert (tmp_path / "y.npz").is_file()
    model = _saved(tmp_path / "model.onnx", chosen=True)
    cold = build_plan_folder(dnnl, model, planned(model, load_onnx(model)), tmp_path / "plan")
    for folder in (cold, plans[True]):
        assert loaded_by(OPENED, folder) == []


def test_a_compiled_step_takes_less_than_a_mebibyte(plans: dict[bool, Path]) -> None:
    objects = {chosen: read_folder(plan).predicted(MemoryPrediction).profile["objects_bytes"] for chosen, plan in plans.items()}
    assert objects[True] - objects[False] < 2 * _MIB  # two such steps


def test_the_whole_process_stays_within_its_floor_and_the_budget(
    plans: dict[bool, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):  # counting lines takes memory of its own
        monkeypatch.delenv(name, raising=False)
    floor, ratio = measured(plans[True])
    assert floor <= 12 * _MIB
    assert ratio <= 1


@pytest.fixture(scope="module")
def wide(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan in whose budget all of its 9 MiB of weights stay."""
    assert dnnl.info.version
    folder = tmp_path_factory.mktemp("wide")
    b = GraphBuilder("wide", (1, 1024))
    x = b.input
    for _ in range(2):
        x = b.relu(b.fc(x, 1024))
    save_onnx(b.build(b.fc(x, 256)), folder / "wide.onnx")
    plan_memory(folder / "wide.onnx", folder / "plan", "24MiB")
    return folder / "plan"


def _read(plan: Path, budget: int) -> float:
    """Bytes that an inference reads within a budget, when others have been before and what is read ahead of it is there."""
    with open_session(plan, budget=budget) as session:
        inputs = {tensor.name: np.ones(tensor.shape, tensor.dtype) for tensor in session.inputs}
        before = [_settled(session) for _ in range(3) if session.run(inputs)]
        return before[-1] - before[-2]


def _settled(session: NativeSession) -> float:
    """Bytes read once no more are read for the next inference: on a busy machine its first ones may be late."""
    told = -1.0
    while told != (told := session.fact("bytes_read")):
        time.sleep(0.1)
    return told


def test_no_budget_of_a_run_is_overrun_from_the_first_byte_on_and_what_fits_stays(
    wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        monkeypatch.delenv(name, raising=False)
    schedules, (facts,) = rows_of(wide / PROGRAM_BIN, Section.SCHEDULES, Section.FACTS)
    least, all_of, weights = (int(one) for one in (*schedules["budget_bytes"][[1, -1]], facts["weights_bytes"]))
    assert all_of - least > weights // 3
    taken, kept = [], []
    for budget in np.linspace(least, all_of, 5).astype(int):
        taken.append(measured(wide, 3, f"{budget}B")[1])
        kept.append(weights - _read(wide, budget))
    taken.append(measured(wide, 2, f"{least}B,{least + _MIB}B,{least}B")[1])
    assert max(taken) <= 1, taken
    assert kept == sorted(kept)
    assert kept[-1] == weights


def test_budgets_are_run_one_after_the_other(dnnl: Dnnl, tmp_path: Path) -> None:
    """The time of an inference ends when its outputs are there: what is made of them takes none of it."""
    found = streamed(dnnl, "plain", tmp_path, 8192)
    plan = write_streamed_plan(dnnl, found, tmp_path / "plan", others=0.76)
    inputs = {name: value.data for name, value in found.inputs.items()}

    def take(_: str, view: memoryview) -> bytes:
        time.sleep(0.2)
        return bytes(view)

    budgets = (middle(found), 1, least(found))
    with open_session(plan.path) as session:
        wanted = session.run(found.inputs)
        phases, outputs, refused = run_budgets(session, inputs, 2, budgets, take)
        (own,), _, _ = run_budgets(session, inputs, 1, (), take)
        assert (session.fact("others"), session.fact("isolated")) == (0.76, 0)
        with pytest.raises(InfeasibleError):
            run_budgets(session, inputs, 1, (1,), take)
    assert isinstance(refused, InfeasibleError)
    assert [phase.budget for phase in phases] == [middle(found), least(found)]
    assert own.budget == least(found)
    for phase in (*phases, own):
        assert all(0 < ms < 200 for ms in phase.run_ms)
        assert all(0 <= waited <= ran for waited, ran in zip(phase.wait_ms, phase.run_ms, strict=True))
        assert phase.predicted_ms > 0
    assert phases[1].read_bytes > 0
    for tensor, value in wanted.items():
        assert np.array_equal(np.frombuffer(outputs[tensor], value.dtype).reshape(value.shape), value)
