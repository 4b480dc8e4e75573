"""The program edgeplan-run, on a library that computes next to nothing: its files, what it prints, and how it ends."""

from __future__ import annotations

import io
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_programs import VALUES, Chain, FakeOnednn, build_fake, write_cold, write_memory

from edgeplan import __version__
from edgeplan.runtime.installed import PROGRAM
from edgeplan.runtime.program_file import Border

LANE = "processes"  # see tests/conftest.py

Done = subprocess.CompletedProcess[str]
CHAIN = Chain.of(4)
X = CHAIN.inputs["x"]
_BYTES = 4 * VALUES


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
