"""Workers end with the process that started them, however it ends, and what it left is deleted by the next."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lifeline_holders import KINDS
from system_files import MARK, family, left

from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.memory_group import NoGroupError, memory_group
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support import lifeline
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import module_command, program_command, run

LANE = "processes"  # see tests/conftest.py

_BEGIN_SECONDS, _END_SECONDS = 60.0, 2.0
#: Processes that a holder has once its worker works.
_WORKING = {"forked": 2, "converter": 3}


@dataclass
class Holder:
    """A process that holds a worker, and what it has started."""

    process: subprocess.Popen[bytes]
    mark: str = field(repr=False)

    @property
    def workers(self) -> list[int]:
        """Numbers of the processes that it has started and that live."""
        return [pid for pid in family(self.mark) if pid != self.process.pid]

    def wait_for(self, count: int) -> None:
        """Wait until it has so many."""
        deadline = time.monotonic() + _BEGIN_SECONDS
        while len(self.workers) < count:
            assert self.process.poll() is None, "it has ended"
            assert time.monotonic() < deadline, self.workers
            time.sleep(0.005)


@contextlib.contextmanager
def held(kind: str, folder: Path) -> Iterator[Holder]:
    """A holder of a kind of worker; nothing of it is left afterwards."""
    mark = uuid.uuid4().hex
    path = os.pathsep.join(p for p in (*sys.path, os.fspath(Path(__file__).parent)) if p)
    environment = {**os.environ, MARK: mark, "PYTHONPATH": path}
    command = [sys.executable, os.fspath(Path(__file__).with_name("lifeline_holders.py")), kind, os.fspath(folder)]
    holder = Holder(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL), mark)
    try:
        yield holder
    finally:
        holder.process.kill()
        holder.process.communicate()
        for pid in holder.workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A plan of a cold start."""
    from edgeplan.runtime.dnnl import Dnnl  # noqa: PLC0415  else `make test-isa` would take these tests for some of kernels

    try:
        dnnl = Dnnl()
    except DeviceError as error:
        pytest.skip(error.what)
    made = tmp_path_factory.mktemp("held")
    builder = GraphBuilder("plain", (1, 3, 32, 32))
    graph = builder.build(builder.relu(builder.conv(builder.input, 8, 3)))
    model = save_onnx(graph, made / "plain.onnx")
    build_plan_folder(dnnl, model, request.getfixturevalue("planned")(model, graph, threads=1), made / "plan")
    return made / "plan"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "from_a_thread"])
def test_workers_end_with_a_parent_that_is_killed(kind: str, folder: Path) -> None:
    if kind == "in_cgroup":
        try:
            with memory_group():
                pass
        except NoGroupError as error:
            pytest.skip(str(error))
    for count, seconds in ((1, 0.1), (_WORKING.get(kind, 1), 0.5)):  # workers that begin, and that are at work
        with held(kind, folder) as holder:
            holder.wait_for(count)
            time.sleep(seconds)
            assert holder.process.poll() is None
            holder.process.kill()
            holder.process.wait()
            assert left(holder.mark, _END_SECONDS) == {}


def test_a_worker_goes_on_when_the_thread_that_started_it_has_ended(folder: Path) -> None:
    with held("from_a_thread", folder) as holder:
        assert holder.process.stdout is not None
        assert holder.process.stdout.readline() == b"ended\n"
        time.sleep(1.0)
        assert len(holder.workers) == 1, "and what its parent starts later has no part in it"
        holder.process.kill()
        holder.process.wait()
        assert left(holder.mark, _END_SECONDS) == {}


def test_a_command_that_takes_too_long_or_has_ended_leaves_nothing_that_it_started() -> None:
    mark = uuid.uuid4().hex
    with pytest.raises(subprocess.TimeoutExpired):
        run(program_command("sh", "-c", "sleep 300 & sleep 300"), timeout=1.0, variables={MARK: mark})
    assert left(mark, _END_SECONDS) == {}
    done = run(program_command("sh", "-c", "sleep 300 >/dev/null 2>&1 & echo done"), variables={MARK: mark})
    assert (done.returncode, done.stdout) == (0, b"done\n")
    assert left(mark, _END_SECONDS) == {}


def test_a_process_whose_holder_has_ended_does_not_begin() -> None:
    command = [sys.executable, "-c", "from edgeplan.support.lifeline import address; print(address())"]
    *rest, inode = lifeline.address().split(":")
    another = ":".join((*rest, str(int(inode) + 1)))  # of a process of the same number
    for where in (run(command).stdout.decode().strip(), another):
        variables = {**os.environ, lifeline.VARIABLE: where}
        done = subprocess.run(module_command("this"), env=variables, capture_output=True, check=False)
        said = b"the process that this one ends with has ended\n"
        assert (done.returncode, done.stdout, done.stderr) == (143, b"", said)


_ASKED = """
import signal, sys, time
from edgeplan.support import lifeline
signal.signal(signal.SIGTERM, lambda *_: {what})
lifeline.end_with_holder(asked=True)
print("bound", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize(("what", "code"), [("sys.exit(7)", 7), ("None", -signal.SIGKILL)], ids=["it does", "it does not"])
def test_descendants_are_asked_to_end_and_killed_when_they_do_not(what: str, code: int) -> None:
    # in a process of its own: the lifeline of this one holds other workers
    holder = (
        "import subprocess, sys\n"
        "from edgeplan.support import lifeline\n"
        "from edgeplan.support.subprocesses import start\n"
        "worker = start([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)\n"
        "assert worker.stdout.readline() == b'bound\\n'\n"
        "lifeline.end_descendants(1.0)\n"
        "print(worker.wait(1.0))\n"
    )
    begin = time.monotonic()
    done = run([sys.executable, "-c", holder, _ASKED.format(what=what)], timeout=60.0)
    assert done.stdout.decode().strip() == str(code), done.stderr.decode()
    assert time.monotonic() - begin < 30


_STARTING = re.compile(
    r"subprocess\.(run|Popen|call|check_\w+)|os\.(fork|posix_spawn\w*|system|popen)|(\w+\.)?Process(PoolExecutor)?"
)


@pytest.mark.texts
def test_processes_are_started_by_the_one_module_that_binds_them() -> None:
    workflow = Path(__file__).parents[2] / "workflow"
    found = {
        f"{path.relative_to(workflow)}: {' '.join(call.split())}"
        for path in workflow.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _STARTING.fullmatch(ast.unparse(node.func))
        for call in [ast.unparse(node)]
        if "lifeline." not in call and "program_command(" not in call
    }
    assert {line.partition(":")[0] for line in found} == {
        "edgeplan/support/lifeline.py",
        "edgeplan/support/subprocesses.py",
        "edgeplan/comparing/runner.py",  # sessions, which end with their input or by themselves; it ends with who asked
        "edgeplan/support/machine.py",  # git, which ends by itself
        "scripts/ratchet.py",  # likewise
        "edgeplan/measurement/process/page_cache.py",  # a guard outlives who changes a number of the system, to put it back
        "edgeplan/measurement/board/worker.py",  # likewise the board's own thermometer, in seconds
        "edgeplan/measurement/board/link.py",  # a worker on a board ends its batch, whatever becomes of who asked
        "edgeplan/measurement/board/deploy.py",  # what is half installed would be worse; within a time
        "edgeplan/measurement/board/install.py",  # alone on the board, where the package is not yet
        "edgeplan/chapters/profiles.py",  # likewise
        "edgeplan/predictors/nodes/kernels.py",  # a Gaussian one
        "edgeplan/predictors/nodes/storing.py",  # likewise
    }, found
    assert not [path for path in workflow.rglob("*.smk") if "subprocess." in path.read_text()]


_KILLED = """
import os, signal
from pathlib import Path
{made}
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
_SCRATCH = """
from edgeplan.support.scratch import ScratchFolder
held = ScratchFolder({what!r}, {within})
folder = held.name
(Path(folder) / "left").write_text("behind")
"""
_GROUP = """
from edgeplan.measurement.process.memory_group import memory_group
with memory_group() as group:
    folder = group._path
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _left_by(code: str) -> Path:
    """The folder that a process makes before it kills itself."""
    done = subprocess.run([sys.executable, "-c", _KILLED.format(made=code)], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip() or "nothing")
    assert folder.is_dir(), done.stderr
    return folder


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    left = _left_by(_SCRATCH.format(what="one", within=None))
    assert left.parent == tmp_path
    unheld = tmp_path / "edgeplan-mine"
    unheld.mkdir()
    with ScratchFolder("two") as first, ScratchFolder("two") as second:
        assert not left.exists()
        assert Path(first).is_dir(), "it is held"
        assert Path(second).is_dir()
    assert list(tmp_path.iterdir()) == [unheld], "not one of ours"


def test_a_folder_beside_a_file_is_deleted_by_the_next_of_its_name(tmp_path: Path) -> None:
    left = _left_by(_SCRATCH.format(what=".model[1].onnx.", within=f"Path({str(tmp_path)!r})"))
    with ScratchFolder(".other.onnx.", tmp_path):
        assert left.is_dir()
    with ScratchFolder(".model[1].onnx.", tmp_path):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_memory_cgroup_of_a_killed_process_is_removed_by_the_next() -> None:
    try:
        with memory_group() as group:
            place = group._path.parent
    except NoGroupError as error:
        pytest.skip(str(error))
    left = _left_by(_GROUP)
    assert left.parent == place
    with memory_group() as group:
        assert not left.exists()
        with memory_group():
            assert group._path.is_dir(), "it is held"


def test_descriptors_do_not_add_up(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    before = len([*descriptors.iterdir()])
    for _ in range(3):
        with ScratchFolder("some", tmp_path):
            pass
        ScratchFolder("other", tmp_path).cleanup()
    assert len([*descriptors.iterdir()]) == before
