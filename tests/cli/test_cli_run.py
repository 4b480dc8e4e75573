"""`edgeplan run`: a user's tensors in and out, agreement with ONNX Runtime, and the cores that asymmetric plans take."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from model_file_runs import onnxruntime_outputs
from tiny_profiled import tiny
from typer.testing import CliRunner, Result

import edgeplan
from edgeplan.cli.commands import app
from edgeplan.errors import CheckError, DeviceError, EdgeplanError, InputError, ModelError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Plan
from edgeplan.runtime import native_session
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.native_session import NativeSession
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support import tensors
from edgeplan.support.tensors import read_outputs, relative_error, write_outputs

SHAPE, NAME = (1, 4, 9, 9), "input"
GOOD = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)


def _graph() -> Graph:
    b = GraphBuilder("net", SHAPE)
    return b.build(b.fc(b.flatten(b.gap(b.relu(b.conv(b.input, 8, 3, name="c"), name="r"), name="g"), name="f"), 5, name="y"))


@pytest.fixture(scope="module")
def built(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and a plan of it that every processor can run."""
    folder = tmp_path_factory.mktemp("run")
    model = save_onnx(_graph(), folder / "net.onnx")
    build_plan_folder(dnnl, model, planned(model, _graph(), threads=1), folder / "plan")
    return folder


def _run(built: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", str(built / "plan"), *map(str, arguments)])


def _saved(save: Callable[..., None], *values: Any, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, *values, **arrays)
    return file.getvalue()


def test_inputs_of_a_file_are_run_and_outputs_written(built: Path, tmp_path: Path) -> None:
    by_columns, wanted = np.asfortranarray(GOOD), onnxruntime_outputs(built / "net.onnx", {NAME: GOOD})
    for content, more in (
        (_saved(np.savez_compressed, **{NAME: GOOD}), ("--check", "--repeat", "2")),
        (_saved(np.savez, **{NAME: by_columns}), ()),
        (_saved(np.save, GOOD), ()),
    ):
        (tmp_path / "x.npz").write_bytes(content)
        done = _run(built, "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", *more)
        assert done.exit_code == 0, done.output
        assert ("largest difference from ONNX Runtime" in done.output) == bool(more)
        found = read_outputs(tmp_path / "y.npz")
        assert [*found] == [*_graph().outputs]
        assert relative_error([*found.values()], wanted) < 1e-5
        (tmp_path / "y.npz").unlink()


_HUGE = _saved(np.lib.format.write_array_header_1_0, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})


def _zip(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{NAME}.npy", content)
    return file.getvalue()


_UNREAD = "cannot read the inputs"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (_saved(np.save, GOOD.astype(np.float64)), "is float64[1,4,9,9]"),
        (_saved(np.save, GOOD.astype(">f4")), "is >f4[1,4,9,9]"),
        (_saved(np.save, GOOD[0]), "is float32[4,9,9]"),
        (_saved(np.save, np.array([{"a": 1}])), "is object[1]"),
        (_saved(np.savez, other=GOOD), "there is no array"),
        (_saved(np.savez, **{NAME: GOOD, "more": GOOD}), "has no input 'more'"),
        (_zip(_HUGE), f"is float32[{1 << 40}]"),
        (b"", _UNREAD),
        (_saved(np.save, GOOD)[:-4], _UNREAD),
        (_saved(np.savez, **{NAME: GOOD})[:400], _UNREAD),
        (_zip(b"\x93NUMPY\x09\x00"), _UNREAD),
        (None, _UNREAD),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,  # archives tell when they were made
)
def test_inputs_that_do_not_fit_are_refused_with_what_was_expected(
    built: Path, tmp_path: Path, content: bytes | None, what: str
) -> None:
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    error = _run(built, "--input", path, "--output", tmp_path / "y.npz").exception
    assert isinstance(error, InputError)
    assert what in error.what
    assert error.where == str(path)
    expected = "numpy.savez" if what == _UNREAD else f"correct the input: expected float32[1,4,9,9] named {NAME!r}"
    assert expected in error.next_step
    assert not (tmp_path / "y.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "next_step"),
    [
        (["--cold", "--check"], ParamsError, "leave out --cold"),
        (["--cold", "--output", "y.npz"], ParamsError, "leave out --cold"),
        (["--cold", "--input", "x.npz"], InputError, "leave out --cold"),
        (["--output", "y.txt"], InputError, "ends in .npz"),
        (["--evicted"], ParamsError, "add --cold"),
        (["b", "-b", "64MiB"], ParamsError, "plan --budgets 64MiB; edgeplan run b --budgets 64MiB"),
        (["--budget", "64MiB"], ParamsError, "plan --budgets 64MiB"),
    ],
)
def test_options_that_contradict_each_other(
    built: Path, arguments: list[str], error: type[EdgeplanError], next_step: str
) -> None:
    done = _run(built, *arguments)
    assert isinstance(done.exception, error)
    assert next_step in done.exception.next_step


def test_an_output_may_have_any_name(tmp_path: Path) -> None:
    outputs = {name: np.full((2, 3), place, np.float32) for place, name in enumerate(("file", "scores:0", "a/b", "ä", "x.npy"))}
    write_outputs(tmp_path / "y.npz", outputs | {"number": np.array(5)})
    *stored, number = read_outputs(tmp_path / "y.npz").items()
    assert [float(value[0, 0]) for _, value in stored] == [0, 1, 2, 3, 4]
    assert {"file", "scores:0", "a/b", "ä"} <= dict(stored).keys()
    assert (number[1].shape, number[1]) == ((), 5)


@pytest.mark.parametrize(("factor", "of", "told"), [(1.001, "first", "e-0"), (np.nan, "last", "not finite")])
def test_outputs_that_differ_fail_the_check(
    built: Path, monkeypatch: pytest.MonkeyPatch, factor: float, of: str, told: str
) -> None:
    """What edgeplan-run has written of some inferences is changed."""
    real = tensors.read_arrays

    def read(folder: Path, outputs: Any) -> dict[str, Any]:
        return {name: value * factor if folder.name == of else value for name, value in real(folder, outputs).items()}

    monkeypatch.setattr(tensors, "read_arrays", read)
    done = _run(built, "--check", "--repeat", "2")
    assert isinstance(done.exception, CheckError)
    assert told in done.exception.what
    assert "largest difference from ONNX Runtime" in done.output


def test_the_model_to_check_against_is_the_one_that_was_planned(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path
) -> None:
    """It is found where it lay, behind a link, too, or where it is said to be now."""
    (tmp_path / "store").mkdir()
    model = tmp_path / "link.onnx"
    model.symlink_to(save_onnx(_graph(), tmp_path / "store" / "0f3a.onnx"))
    made = planned(model, _graph(), threads=1, sources=("cached_read",))
    plan = build_plan_folder(dnnl, model, made, tmp_path / "elsewhere/plan")
    save_onnx(_graph(), tmp_path / "other.onnx", seed=1)
    with pytest.raises(ModelError, match="not the model that was planned"):
        edgeplan.run(plan, GOOD, check=True, model=tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        read_folder(plan).require_model(tmp_path / "none.onnx")
    assert read_folder(plan).require_model(model.resolve()) == model.resolve()
    found = edgeplan.run(plan, GOOD, check=True)
    assert found.difference is not None
    assert found.difference < 1e-5
    found.require_checked()


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
    """Plans for one big core and one beside it, and for two equal cores (`equal`)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config/devices").mkdir(parents=True)
    model = save_onnx(tiny(), tmp_path / "tiny.onnx")
    build_plan_folder(dnnl, model, planned(model, tiny()), tmp_path / "equal")
    plan = planned(model, tiny(), widen_from=-1, equal_cores=False, little_ratio=1.5, threads=1)
    return build_plan_folder(dnnl, model, plan, tmp_path / "plan")


def _device(big: Sequence[int], little: Sequence[int]) -> None:
    fields = {"big_cores": [*big], "little_cores": [*little], "little_ratio": 1.5} if little else {"big_cores": [*big]}
    document = {"format_version": 1, "name": "dev", "engine": "onednn", **fields}
    Path("config/devices/dev.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.parametrize(("named", "swapped"), [(False, False), (True, False), (True, True)])
def test_the_next_processor_prepares_unless_a_device_names_the_cores(
    folder: Path, pair: tuple[int, int], monkeypatch: pytest.MonkeyPatch, named: bool, swapped: bool
) -> None:
    seen, real, before = list[tuple[int, ...]](), native_session.open_session, os.sched_getaffinity(0)

    def spy(folder: Path, **how: Any) -> NativeSession:
        session = real(folder, **how)
        seen.append(tuple(how["processors"]) or tuple(sorted(os.sched_getaffinity(0))))
        assert os.sched_getaffinity(0) == set(seen[-1])
        return session

    monkeypatch.setattr(native_session, "open_session", spy)
    big, little = reversed(pair) if swapped else pair
    _device([big], [little])
    edgeplan.run(folder, device="dev" if named else "")
    assert seen == [(big, little)]
    assert os.sched_getaffinity(0) == before


def test_fresh_processes_take_the_same_cores(folder: Path, pair: tuple[int, int], jobs: list[RunJob]) -> None:
    _device(pair[:1], pair[1:])
    done = _run(folder.parent, "--cold", "--device", "dev")
    assert done.exit_code == 0, done.output
    assert "cold: " in done.output
    found = edgeplan.run(folder, cold=True, repeat=2)
    assert (len(found.cold_ms), found.warm_ms, dict(found.outputs)) == (2, (), {})
    assert [job.cpus for job in jobs] == [pair] * 3


_FEW = "needs {0} processors to execute and {1} beside them to prepare, there are 1 and 0"


@pytest.mark.parametrize(
    ("may_use", "device", "how", "what"),
    [
        ("ab", ("b", "a"), {"cold": True, "device": "dev"}, "is numbered below big core"),  # a fresh process would confuse them
        ("a", ("a", "b"), {}, _FEW.format(1, 1)),
        ("a", ("a", "b"), {"cold": True}, _FEW.format(1, 1)),
        ("b", ("a", "b"), {"plan": Path("equal")}, _FEW.format(2, 0)),
        ("ab", ("a", "b"), {"device": "nosuch"}, "unknown device"),
        ("ab", ("ab", ""), {"device": "dev"}, "the device has 2"),
    ],
)
def test_cores_that_do_not_fit_the_plan_are_refused(
    folder: Path, pair: tuple[int, int], may_use: str, device: tuple[str, str], how: dict[str, Any], what: str
) -> None:
    cores = dict(zip("ab", pair, strict=True))
    big, little = ([cores[name] for name in names] for names in device)
    _device(big, little)
    os.sched_setaffinity(0, {cores[name] for name in may_use})
    with pytest.raises(DeviceError, match=what) as caught:
        edgeplan.run(**{"plan": folder, **how})
    assert caught.value.where
    assert caught.value.next_step
