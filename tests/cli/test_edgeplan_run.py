"""The program edgeplan-run: files, what it prints, how it ends; `edgeplan run` becomes it, and stays within its budget."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

import numpy as np
import pytest
from made_programs import VALUES, Chain, FakeOnednn, build_fake, write_cold, write_memory
from model_file_runs import made, node, values, write
from plan_folders import COMMAND, HEAVY, OPENED, loaded_by
from streamed_models import least, middle, streamed, write_streamed_plan

from edgeplan import __version__, plan_memory
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
from edgeplan.runtime.program_file import PROGRAM_BIN, Border, Section, rows_of
from edgeplan.runtime.streaming.schedules import MemoryPrediction, MemorySchedule

LANE = "processes"  # see tests/conftest.py

Done = subprocess.CompletedProcess[str]
CHAIN = Chain.of(4)
X = CHAIN.inputs["x"]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeOnednn:
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(params=[write_cold, write_memory], ids=["cold", "memory"])
def folder(request: pytest.FixtureRequest, fake: FakeOnednn, tmp_path: Path) -> Path:
    """A plan of either kind, in a folder with a file of its input."""
    request.param(fake, CHAIN, tmp_path / "plan")
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def run(folder: Path, *words: str | Path, plan: str = "plan", **how: Any) -> Done:
    return subprocess.run([PROGRAM, plan, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False, **how)


def refused(done: Done, code: int, *told: str) -> None:
    """It ended with an exit code and three lines: what, where, and what to do."""
    assert (done.returncode, done.stdout) == (code, "")
    what, where, next_step = done.stderr.splitlines()
    assert (what[:7], where[:9], next_step[:9]) == ("error: ", "  where: ", "  next:  ")
    assert all(text in done.stderr for text in told), done.stderr


@pytest.mark.parametrize("given", ["x=x.npy", "x.npy"])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_inputs_are_read_and_outputs_written(folder: Path, given: str, version: tuple[int, int]) -> None:
    with (folder / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, X, version)
    done = run(folder, "-i", given, "-o", "out", "--repeat", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in (folder / "out").iterdir()] == ["y.npy"]
    found = np.load(folder / "out/y.npy")
    assert (found.dtype, found.shape) == (np.float32, (VALUES,))
    assert np.array_equal(found, CHAIN.wanted)


def test_without_files_inputs_are_drawn_and_every_process_draws_the_same(folder: Path) -> None:
    for out in ("one", "other"):
        assert run(folder, "-o", out).returncode == 0
    one, other = (np.load(folder / out / "y.npy") for out in ("one", "other"))
    assert np.array_equal(one, other)
    weights = (CHAIN.wanted - X / 2**CHAIN.steps) * 2**CHAIN.steps
    drawn = one * 2**CHAIN.steps - weights
    assert drawn.min() > 0
    assert drawn.max() < 1.1
    assert len(np.unique(drawn.round(4))) > VALUES // 2


def test_one_object_of_json_says_what_the_lines_say(folder: Path) -> None:
    found = json.loads(run(folder, "--json", "--repeat", "3", "-o", "out").stdout)
    told = run(folder, "--repeat", "3").stdout.splitlines()
    assert found["outputs"] == {"y": "out/y.npy"}
    assert found["model"] == "chain"
    assert found["steps"] == CHAIN.steps
    assert found["peak_bytes"] >= found["anonymous_bytes"] + found["file_bytes"] > 0
    if found["kind"] == "cold-start":
        assert told[0] == f"chain: 4 steps, layout nchw, {found['threads']} threads, weight cache 0.0 MB"
        assert [line.partition(" ")[0] for line in told[1:]] == ["cold:", "core-milliseconds:", "warm:"]
        assert len(found["warm_ms"]) == 2
        assert 0 < found["stages_ms"]["execute"] < found["cold_ms"]
        assert not found["continuous"]
    else:
        (phase,) = found["phases"]
        assert told[0] == "chain: 4 steps, 1 threads"
        assert told[1].startswith("1.0 MiB: ")
        assert "(median of 3, least" in told[1]
        assert told[-1].startswith("peak ")
        assert all(kind in told[-1] for kind in ("budget 1.00", "anonymous", "of files", "of the kernel's tables"))
        assert len(phase["run_ms"]) == len(phase["wait_ms"]) == 3
        assert phase["budget_bytes"] == 1 << 20
        assert found["idle_bytes"] > 0


def test_kernels_of_later_runs_are_told_and_first_outputs_are_written_apart(fake: FakeOnednn, tmp_path: Path) -> None:
    write_cold(fake, CHAIN, tmp_path / "plan", later=True)
    told = run(tmp_path, "--repeat", "12", "-o", "last", "--first", "first").stdout.splitlines()
    first, last = (np.load(tmp_path / name / "y.npy") for name in ("first", "last"))
    assert np.array_equal(first, last)
    table = told[told.index("inference        ms  kernels") + 1 :]
    assert [line.split()[0] for line in table[:10]] == [str(k) for k in range(1, 11)]
    assert table[1].endswith("warm, what was left of them prepared first")
    assert table[10] == "          and 2 more, warm"


def test_a_file_of_an_output_of_any_name_lies_in_the_folder(fake: FakeOnednn, tmp_path: Path) -> None:
    place = 4 * VALUES * CHAIN.steps
    write_cold(fake, CHAIN, tmp_path / "plan", outputs=(Border("../a b:\u00e9%", (VALUES,), place),), model="evil\x1b[2J")
    done = run(tmp_path, "-o", "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["..%2Fa%20b%3A%C3%A9%25.npy"]
    assert done.stdout.startswith("evil\\x1b[2J: ")


def test_budgets_follow_each_other_and_one_that_is_too_small_leaves_the_others(fake: FakeOnednn, tmp_path: Path) -> None:
    write_memory(fake, CHAIN, tmp_path / "plan")
    done = run(tmp_path, "--budgets", "1KiB,1MiB,2MB", "-o", "out")
    assert done.returncode == 13
    assert [line.partition(" MiB")[0] for line in done.stdout.splitlines()[1:3]] == ["1.0", "1.9"]
    assert "planned in" in done.stdout
    assert done.stderr.startswith("error: 0.00 MiB is not enough: the least is 1.00 MiB")
    assert (tmp_path / "out/y.npy").is_file()
    refused(run(tmp_path, "--budgets", "1KiB"), 13, "the least is 1.00 MiB")


def test_it_says_that_it_is_ready_and_waits(folder: Path) -> None:
    with subprocess.Popen([PROGRAM, "plan", "--gate", "gate"], cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        time.sleep(0.1)
        assert process.poll() is None
        (folder / "gate").touch()
        assert process.wait(timeout=30) == 0


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


_EXPECTED = f"correct the input: expected float32[{VALUES}] named 'x'"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (_npy(X.astype(np.float64)), (f"input 'x' is float64[{VALUES}]", _EXPECTED)),
        (_npy(X.astype(">f4")), (f"input 'x' is >f4[{VALUES}]", _EXPECTED)),
        (_npy(X.reshape(2, -1)), (f"input 'x' is float32[2,{VALUES // 2}]", _EXPECTED)),
        (_npy(X[0]), ("input 'x' is float32[]", _EXPECTED)),
        (_npy(np.array([{"a": 1}])), ("input 'x' is object[1]", _EXPECTED)),
        (_npy(np.zeros(2, [("a", "f4")])), ("it holds records, not numbers", "numpy.save")),
        (_npy(X)[:-1], ("it is cut short",)),
        (_npy(X)[:40], ("it is cut short",)),
        (b"", ("it is cut short",)),
        (b"no array, but text", ("it is no .npy file",)),
        (b"\x93NUMPY\x09\x00" + bytes(99), ("arrays of format 9.0 are not known",)),
        (_npy(X).replace(b"'shape'", b"'sharp'"), ("its header names no shape",)),
        (_npy(X).replace(b"False", b"True "), ("column by column",)),
        (None, ("No such file",)),
    ],
    ids=lambda given: given[0] if isinstance(given, tuple) else type(given).__name__,
)
def test_inputs_that_do_not_fit_are_refused(folder: Path, content: bytes | None, told: tuple[str, ...]) -> None:
    (folder / "x.npy").unlink()
    if content is not None:
        (folder / "x.npy").write_bytes(content)
    refused(run(folder, "-i", "x=x.npy", "-o", "out"), 11, "where: x.npy", *told)
    assert not list((folder / "out").iterdir())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-i", "z=x.npy", "-i", "x=x.npy"), "2 files were given"),
        (("--nonsense", "1"), "there is no such option"),
        (("--repeat",), "needs a value"),
        (("--repeat", "0"), "'0' is not in the range 1 to 10000"),
        (("--repeat=1e3",), "'1e3' is not in the range"),
        (("other",), "one folder is run at a time"),
        (("--budgets", "64MiB,10%"), "'10%' is no budget of memory"),
        (("--budget", "nan"), "'nan' is no budget"),
        (("--budget", "1e400MB"), "'1e400MB' is no budget"),
        (("--processors", "0,x"), "'x' is not in the range"),
    ],
)
def test_options_that_do_not_fit_are_refused(folder: Path, words: tuple[str, ...], told: str) -> None:
    refused(run(folder, *words), 11, told)


def test_what_is_no_option_of_a_kind_of_plan_is_refused(fake: FakeOnednn, tmp_path: Path) -> None:
    write_cold(fake, CHAIN, tmp_path / "cold")
    write_memory(fake, CHAIN, tmp_path / "memory")
    refused(run(tmp_path, "--budget", "64MiB", plan="cold"), 11, "a plan of a cold start has no budget")
    refused(run(tmp_path, "--first", "out", plan="memory"), 11, "a plan of memory has no first inference")


@pytest.mark.parametrize(
    ("spoil", "code", "told"),
    [
        (lambda plan: plan.rename(plan.with_name("elsewhere")), 5, "there is no plan folder"),
        (lambda plan: (plan / "program.bin").write_bytes(b"EDGEPLAN"), 5, "the plan is damaged"),
        (lambda plan: next(plan.glob("weights.*")).write_bytes(b""), 2, "the weights are damaged"),
    ],
    ids=["folder", "program", "weights"],
)
def test_the_exit_code_says_what_went_wrong(folder: Path, spoil: Callable[[Path], object], code: int, told: str) -> None:
    spoil(folder / "plan")
    refused(run(folder), code, told)


def test_a_library_that_is_not_there_and_a_folder_that_nobody_can_write_are_told(folder: Path) -> None:
    refused(run(folder, "--library", "none.so"), 3, "oneDNN is not installed", "none.so")
    refused(run(folder, "-o", "x.npy"), 1, "cannot write the outputs: Not a directory", "where: x.npy")


def test_output_that_nobody_takes_ends_it_as_other_commands(folder: Path) -> None:
    for shell, code in ((">&-", 0), (">/dev/full", 1), ("| true", 0)):
        done = subprocess.run(f"{PROGRAM} plan {shell}", shell=True, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S602
        assert done.returncode == code, done.stderr
        assert ("cannot write to the standard output: No space left" in done.stderr) == (code == 1)


def test_help_and_version() -> None:
    for word, told in (("--version", f"edgeplan-run {__version__}\n"), ("--help", "Usage: edgeplan-run FOLDER [OPTION]...\n")):
        assert subprocess.run([PROGRAM, word], capture_output=True, text=True, check=True).stdout.startswith(told)


_MIB = 1 << 20
#: What a plan is handed over without, beside what no process that runs plans loads.
_HEAVY = (*HEAVY, "numpy", "typer", "rich", "msgspec", "argparse", "logging", "ctypes", "typing")


def measured(plan: Path, repeat: int = 3, budgets: str = "") -> tuple[int, float]:
    """Bytes of a run of a plan that is ready to open it, and the most from there on by these and the largest of the budgets."""
    asked, own = ["--budgets", budgets] if budgets else [], read_folder(plan, MEMORY).scheduled(MemorySchedule).budget_bytes
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
    plans: dict[bool, Path], wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):  # counting lines takes memory of its own
        monkeypatch.delenv(name, raising=False)
    floor, most = measured(plans[True])
    assert floor <= 12 * _MIB
    schedules, (facts,) = rows_of(wide / PROGRAM_BIN, Section.SCHEDULES, Section.FACTS)
    least, all_of, weights = (int(one) for one in (*schedules["budget_bytes"][[1, -1]], facts["weights_bytes"]))
    assert all_of - least > weights // 3
    taken, kept = [most], []
    for budget in np.linspace(least, all_of, 3).astype(int):
        taken.append(measured(wide, 3, f"{budget}B")[1])
        kept.append(weights - _read(wide, budget))
    taken.append(measured(wide, 2, f"{least}B,{least + _MIB}B,{least}B")[1])
    assert max(taken) <= 1, taken
    assert kept == sorted(kept)
    assert kept[-1] == weights


def test_budgets_are_run_one_after_the_other(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an inference ends when its outputs are there: what is made of them takes none of it."""
    found = streamed(dnnl, "plain", tmp_path, 8192)
    plan = write_streamed_plan(dnnl, found, tmp_path / "plan", others=0.76)
    inputs = {name: value.data for name, value in found.inputs.items()}

    real = NativeSession.run_taking
    monkeypatch.setattr(NativeSession, "run_taking", lambda *asked: (real(*asked), time.sleep(0.2))[0])
    budgets = (middle(found), 1, least(found))
    with open_session(plan.path) as session:
        wanted = session.run(found.inputs)
        phases, outputs, refused = run_budgets(session, inputs, 2, budgets)
        (own,), _, _ = run_budgets(session, inputs, 1, ())
        assert (session.fact("others"), session.fact("isolated")) == (0.76, 0)
        with pytest.raises(InfeasibleError):
            run_budgets(session, inputs, 1, (1,))
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
