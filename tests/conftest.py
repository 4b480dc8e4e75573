"""What tests share: a place of each worker's own, examples that are the same every time, and what those of the runtime need."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from depth import FEW, PROFILE
from edgeplan.cli import main
from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import lock, others
from edgeplan.measurement.process import starts
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import SOURCES
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.candidates import default
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import default_program, step_candidates
from edgeplan.runtime.session import SequentialSession

settings.register_profile("few", derandomize=True, max_examples=FEW)
settings.register_profile("many", derandomize=True)
settings.load_profile(PROFILE)
Array = npt.NDArray[np.float32]
#: The lane of a test whose file names none as `LANE`; what computes with oneDNN or OpenCL is of `numerics` instead.
_FAST = "fast"
#: Lanes of folders that have another one.
_LANES = {**dict.fromkeys(("engines", "processors"), "numerics"), "end_to_end": "processes", "texts": "texts"}
#: Lanes by marker: what takes seconds, though others reach nearly all its lines, what takes minutes, and what reads sources.
_MARKED = ("long", "slow", "texts", "committed")
#: What a run in the checkout writes: tests of each day hold whatever it holds, those marked `committed` are of what is in git.
ROOT = Path(__file__).parents[1]
_RESULTS = tuple(str(ROOT / name) for name in ("params.yaml", "dvc.lock", "data", "results"))
_READ: list[str] = []
#: Tests of these lanes work in the checkout, all others in an empty folder.
_IN_PLACE, _ELSEWHERE = ("texts", "slow", "committed"), tempfile.TemporaryDirectory(prefix="edgeplan-tests-")
#: What computes with the instructions that oneDNN finds, or in blocks of their width.
_BY_ISA = tuple(
    f"edgeplan.{name}" for name in ("runtime.dnnl", "runtime.partitioned", "engines.onednn.processor", "engines.gpu")
)
#: Engines that do so, each of which some tests take in turn. OpenVINO reads the same variable for a oneDNN of its own, which
#: ends the process where it asks for less than the processor has.
_ENGINES_BY_ISA = {"onednn", "opencl"}


def pytest_configure(config: pytest.Config) -> None:
    """Make the lanes markers, by which `make test` and its siblings select."""
    gc.disable()  # until all is collected
    config.lanes = tuple(dict.fromkeys((_FAST, *_LANES.values(), *_MARKED)))
    for lane in config.lanes:
        config.addinivalue_line("markers", f"{lane}: a lane of tests, see CONTRIBUTING.md")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put each test into its lane; mark what `make test-isa` runs, and skip it where the processor lacks what is asked for."""
    lacking = _lacking_isa()
    for item in items:
        module = getattr(item, "module", None)
        lane = getattr(module, "LANE", _LANES.get(item.path.relative_to(Path(__file__).parent).parts[0], _FAST))
        callspec = getattr(item, "callspec", None)
        engine = callspec.params.get("each_engine") if callspec else None
        isa = "dnnl" in getattr(item, "fixturenames", ()) or _computes(module) or engine in _ENGINES_BY_ISA
        if isa:
            item.add_marker(pytest.mark.isa)
        if isa and lacking:
            item.add_marker(pytest.mark.skip(lacking))
        marked = [name for name in _MARKED if item.get_closest_marker(name)]
        if len(marked) > 1:
            raise pytest.UsageError(f"{item.nodeid} is in two lanes: {', '.join(marked)}")
        if not marked:
            item.add_marker("numerics" if isa and lane == _FAST else lane)


def _note_reads(event: str, arguments: tuple[object, ...]) -> None:
    """Note what of the checkout's results is read by this process (an audit hook)."""
    if event in {"open", "os.listdir", "os.scandir"} and arguments and isinstance(arguments[0], str | os.PathLike):
        path = os.path.abspath(arguments[0])  # noqa: PTH100  links stay as they are
        if path.startswith(_RESULTS) and not path.endswith(".gitignore"):
            _READ.append(path)


sys.addaudithook(_note_reads)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures of any scope: forget what earlier tests read, and leave the checkout, with what was run in it."""
    _READ.clear()
    os.chdir(ROOT if any(map(item.get_closest_marker, _IN_PLACE)) else _ELSEWHERE.name)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Hold that a test of each day does not depend on what was run in the checkout."""
    if not any(map(item.get_closest_marker, _MARKED)):
        assert not _READ, "mark the test `committed`, or give it files of its own"


def pytest_collection_finish() -> None:
    """Leave modules and tests, which live until the end, to no further garbage collection: a tenth of the processor's time."""
    gc.freeze()
    gc.enable()


@cache
def _computes(module: ModuleType | None) -> bool:
    return any(str(getattr(value, "__module__", "")).startswith(_BY_ISA) for value in vars(module or object).values())


def _lacking_isa() -> str:
    """The reason why this processor cannot show what `ONEDNN_MAX_CPU_ISA` asks for; "" if it can."""
    asked = os.environ.get("ONEDNN_MAX_CPU_ISA", "").lower()
    if not asked:
        return ""
    try:
        found = Dnnl().info.isa
    except DeviceError as error:
        return error.what
    return "" if found == asked else f"this processor has no {asked}: oneDNN computes with {found}"


@pytest.fixture(scope="session")
def dnnl() -> Dnnl:
    """The library; the tests that need it are skipped where it is not installed."""
    try:
        return Dnnl()
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.fixture(scope="session")
def planned(dnnl: Dnnl) -> Callable[..., Plan]:
    """Makes plans for two equal cores without planning: the choices are the test's."""

    def plan(
        model: Path,
        graph: Graph,
        *,
        home: str = "nhwc",
        sources: Sequence[str] = ("cached_mmap",),
        picks: Sequence[int] = (),
        queued: Sequence[bool] = (),
        widen_from: int = 0,
        **changes: object,
    ) -> Plan:
        """Of each step the candidate that `picks` names (else the default), the source, and the queue."""
        lowered = lower(graph)
        count = len(lowered.steps)
        dnnl.set_threads(1)
        with dnnl.without_primitive_cache():
            offered = step_candidates(dnnl, lowered, home)
        chosen = [
            candidates[picks[k] % len(candidates)].name if k < len(picks) else default(candidates).name
            for k, candidates in enumerate(offered)
        ]
        names = sorted(set(chosen))
        weighted = [bool(s.weights) or "form" in s.settings for s in lowered.steps]  # tables of places are weights, too
        source = [sources[k % len(sources)] if weighs else "none" for k, weighs in enumerate(weighted)]
        on_queue = [queued[k % len(queued)] if queued else k % 3 != 0 for k in range(count)]
        costs = dict.fromkeys(("planning_ms", "read_bytes", "cache_bytes"), 0) | {"makespan_ms": 1.0, "lower_bound_ms": 1.0}
        fields: dict[str, object] = {
            "planner": "by hand",
            "costs": "profiled",
            "note": "",
            "layout": home,
            "equal_cores": True,
            "little_ratio": 1.0,
            "steps": tuple(step.name for step in lowered.steps),
            "implementations": tuple(names),
            "implementation": tuple(names.index(name) for name in chosen),
            "source": tuple(SOURCES.index(s) for s in source),
            "main": tuple(k for k in range(count) if not on_queue[k]),
            "queues": (tuple(k for k in range(count) if on_queue[k]),),
            "widen_from": count if widen_from < 0 else min(widen_from, count),
        }
        return Plan.model_validate(asdict(target_of(model, dnnl, 2)) | fields | costs | changes)

    return plan


@pytest.fixture
def model(graph: Graph, tmp_path: Path) -> Path:
    """The file of the `graph` that the module of the test has."""
    return save_onnx(graph, tmp_path / "net.onnx")


@pytest.fixture
def wanted(dnnl: Dnnl, graph: Graph, model: Path) -> Mapping[str, Array]:
    """Its outputs, by the runtime step after step."""
    return SequentialSession(dnnl, default_program(dnnl, model, graph, "nchw"), model.parent).run(random_inputs(graph))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[RunJob]:
    """Grows by what each fresh process is given."""
    given: list[RunJob] = []
    real = starts.run_cold

    def spy(job: RunJob) -> RunResult:
        given.append(job)
        return real(job)

    monkeypatch.setattr(starts, "run_cold", spy)
    return given


class Answer(NamedTuple):
    """What a command ended with and printed."""

    code: int
    out: str
    err: str


def _run_beside(_: str, words: Sequence[str]) -> NoReturn:
    """Run a program that would take the place of this process."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)


@pytest.fixture
def edgeplan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs a command as its entry point does, but in this process: (arguments, folder that it is called from)."""

    def run(*arguments: str, folder: Path | None = None) -> Answer:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["edgeplan", *arguments])
            patch.setattr(os, "execv", _run_beside)
            if folder is not None:
                patch.chdir(folder)
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        return Answer(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture(scope="session", autouse=True)
def _worker_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A state folder and a machine lock for each worker, which no other one waits for, and a core for its linear algebra.

    What other workers do meanwhile is no reason to measure again.
    """
    folder = tmp_path_factory.mktemp("machine")
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1, "blas"):
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setattr(lock, "FOLDER", folder)
        patch.setattr(others, "DISTURBED", 1.0)
        yield


@pytest.fixture(autouse=True)
def _no_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line notes a workspace that it is given for what it starts; here that would be the next test."""
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", "")
