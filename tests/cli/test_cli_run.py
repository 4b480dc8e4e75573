"""`edgeplan run`: a user's tensors in and out, agreement with ONNX Runtime, and the cores that asymmetric plans take."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import yaml
from tiny_profiled import tiny
from typer.testing import CliRunner, Result

import edgeplan
from edgeplan.cli import app
from edgeplan.errors import CheckError, DeviceError, EdgeplanError, InputError, ModelError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Plan
from edgeplan.runtime import native_session
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import NativeSession
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support import tensors
from edgeplan.support.tensors import relative_error, write_outputs

SHAPE = (1, 4, 9, 9)


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


@pytest.fixture
def values() -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)


def _name() -> str:
    (name,) = _graph().inputs
    return name


def _reference(model: Path, values: np.ndarray[Any, Any]) -> dict[str, np.ndarray[Any, Any]]:
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {_name(): values}), strict=True))


def _run(built: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", str(built / "plan"), *map(str, arguments)])


@pytest.mark.parametrize("how", ["npz", "compressed", "npy", "by columns"])
def test_inputs_of_a_file_are_run_and_outputs_written(
    built: Path, tmp_path: Path, values: np.ndarray[Any, Any], how: str
) -> None:
    given = tmp_path / ("x.npz" if "np" not in how or how == "npz" else "x.npy")
    if how == "npz":
        np.savez(given, **{_name(): values})
    elif how == "compressed":
        np.savez_compressed(given, **{_name(): values})
    elif how == "by columns":
        np.savez(given, **{_name(): np.asfortranarray(values)})
    else:
        np.save(given, values)
    done = _run(built, "--input", given, "--output", tmp_path / "y.npz", "--check", "--repeat", "2")
    assert done.exit_code == 0, done.output
    assert "largest difference from ONNX Runtime" in done.output
    wanted = _reference(built / "net.onnx", values)
    with np.load(tmp_path / "y.npz", allow_pickle=False) as found:
        assert set(found.files) == set(wanted)
        assert relative_error([found[name] for name in wanted], list(wanted.values())) < 1e-5


def _object_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def _huge() -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    return file.getvalue()


def _saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _zip(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


GOOD = np.zeros(SHAPE, np.float32)


def _plain(given: object) -> str:
    """Names of tests do not hold the bytes of archives, which tell the second in which they were made."""
    return given if isinstance(given, str) else type(given).__name__


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (_npy(GOOD.astype(np.float64)), "is float64[1,4,9,9]"),
        (_npy(GOOD.astype(np.uint8)), "is uint8[1,4,9,9]"),
        (_npy(GOOD.astype(">f4")), "is >f4[1,4,9,9]"),
        (_npy(GOOD[0]), "is float32[4,9,9]"),
        (_npy(GOOD.transpose(0, 2, 3, 1)), "is float32[1,9,9,4]"),
        (_saved(other=GOOD), "there is no array"),
        (_saved(), "only none"),
        (_saved(**{_name(): GOOD, "more": GOOD}), "has no input 'more'"),
        (_saved(**{_name(): GOOD[:, :2]}), "is float32[1,2,9,9]"),
        (_object_array(), "is object[1]"),
        (_huge(), f"is float32[{1 << 40}]"),
        (_zip(**{_name(): _huge()}), f"is float32[{1 << 40}]"),
    ],
    ids=_plain,
)
def test_inputs_that_do_not_fit_are_refused_with_what_was_expected(
    built: Path, tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    done = _run(built, "--input", path, "--output", tmp_path / "y.npz")
    assert isinstance(done.exception, InputError)
    assert what in done.exception.what
    assert done.exception.where == str(path)
    assert done.exception.next_step == f"correct the input: expected float32[1,4,9,9] named {_name()!r}"
    assert not (tmp_path / "y.npz").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no array",
        _npy(GOOD)[:-4],
        _npy(GOOD)[:20],
        _saved(**{_name(): GOOD})[:400],
        _zip(**{_name(): b"\x93NUMPY\x09\x00"}),
        None,
    ],
    ids=_plain,
)
def test_files_that_hold_no_arrays_are_told(built: Path, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.npz"
    if content is not None:
        path.write_bytes(content)
    done = _run(built, "--input", path)
    assert isinstance(done.exception, InputError)
    assert "cannot read the inputs" in done.exception.what
    assert "numpy.savez" in done.exception.next_step


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--cold", "--check"], ParamsError),
        (["--cold", "--output", "y.npz"], ParamsError),
        (["--cold", "--input", "x.npz"], InputError),
        (["--output", "y.txt"], InputError),
    ],
)
def test_options_that_contradict_each_other(built: Path, arguments: list[str], error: type[EdgeplanError]) -> None:
    done = _run(built, *arguments)
    assert isinstance(done.exception, error)
    assert done.exception.next_step


def test_an_output_may_have_any_name(tmp_path: Path) -> None:
    outputs = {name: np.full((2, 3), place, np.float32) for place, name in enumerate(("file", "scores:0", "a/b", "ä", "x.npy"))}
    write_outputs(tmp_path / "y.npz", outputs)
    with np.load(tmp_path / "y.npz", allow_pickle=False) as found:
        stored = {name: found[name] for name in found.files}
    assert [float(value[0, 0]) for value in stored.values()] == [0, 1, 2, 3, 4]
    assert {"file", "scores:0", "a/b", "ä"} <= stored.keys()


def _wrong(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], of: Sequence[str] = ("first", "last")) -> None:
    """Changes what edgeplan-run has written of some inferences."""
    real = tensors.read_arrays

    def read(folder: Path, outputs: Any) -> dict[str, Any]:
        return {name: change(value) if folder.name in of else value for name, value in real(folder, outputs).items()}

    monkeypatch.setattr(tensors, "read_arrays", read)


@pytest.mark.parametrize(
    ("change", "told"), [(lambda v: v * 1.001, "e-0"), (lambda v: v * np.nan, "not finite"), (lambda v: v[:, :1], "not finite")]
)
def test_outputs_that_differ_fail_the_check(
    built: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any], told: str
) -> None:
    _wrong(monkeypatch, change)
    assert _run(built).exit_code == 0
    done = _run(built, "--check")
    assert isinstance(done.exception, CheckError)
    assert done.exception.exit_code
    assert told in done.exception.what
    assert "largest difference from ONNX Runtime" in done.output


def test_only_later_inferences_that_differ_fail_the_check(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _wrong(monkeypatch, lambda value: value * 1.01, of=("last",))
    assert isinstance(_run(built, "--check", "--repeat", "2").exception, CheckError)


def test_the_model_to_check_against_is_the_one_that_was_planned(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, values: np.ndarray[Any, Any]
) -> None:
    model = save_onnx(_graph(), tmp_path / "net.onnx")
    plan = build_plan_folder(dnnl, model, planned(model, _graph(), threads=1, sources=("cached_read",)), tmp_path / "plan")
    save_onnx(_graph(), tmp_path / "other.onnx", seed=1)
    with pytest.raises(ModelError, match="not the model that was planned"):
        edgeplan.run(plan, values, check=True, model=tmp_path / "other.onnx")
    with pytest.raises(ModelError, match="does not exist"):
        edgeplan.run(plan, values, check=True, model=tmp_path / "none.onnx")
    found = edgeplan.run(plan, values, check=True, model=model)
    assert found.difference is not None
    assert found.difference < 1e-5
    found.require_checked()


def test_a_model_behind_a_link_is_found(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, values: np.ndarray[Any, Any]
) -> None:
    (tmp_path / "store").mkdir()
    model = tmp_path / "link.onnx"
    model.symlink_to(save_onnx(_graph(), tmp_path / "store" / "0f3a.onnx"))
    plan = build_plan_folder(dnnl, model, planned(model, _graph(), threads=1), tmp_path / "elsewhere" / "plan")
    assert edgeplan.run(plan, values, check=True).difference < 1e-5  # type: ignore[operator]


def test_cold_starts_of_the_interface_are_in_processes_of_their_own(built: Path) -> None:
    assert random_inputs({_name(): SHAPE}, 0)
    found = edgeplan.run(built / "plan", cold=True, repeat=2)
    assert (len(found.cold_ms), found.warm_ms, dict(found.outputs)) == (2, (), {})


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


def _refused(what: str, folder: Path, **how: Any) -> None:
    with pytest.raises(DeviceError, match=what) as caught:
        edgeplan.run(folder, **how)
    assert caught.value.where
    assert caught.value.next_step


def test_without_a_device_the_next_processor_prepares(folder: Path, pair: tuple[int, int], seen: Lanes) -> None:
    before = os.sched_getaffinity(0)
    edgeplan.run(folder)
    assert seen == [pair]
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("swapped", [False, True])
def test_a_device_names_the_cores(folder: Path, pair: tuple[int, int], seen: Lanes, swapped: bool) -> None:
    big, little = reversed(pair) if swapped else pair
    _device(big_cores=[big], little_cores=[little], little_ratio=1.5)
    edgeplan.run(folder, device="dev")
    assert seen == [(big, little)]


def test_a_fresh_process_takes_the_same_cores(folder: Path, pair: tuple[int, int], jobs: list[RunJob]) -> None:
    _device(big_cores=[pair[0]], little_cores=[pair[1]], little_ratio=1.5)
    for arguments in ((), ("--device", "dev")):
        done = _run(folder.parent, "--cold", *arguments)
        assert done.exit_code == 0, done.output
        assert "cold: " in done.output
    assert [job.cpus for job in jobs] == [pair] * 2


def test_a_warm_run_has_no_evicted_page_cache(folder: Path) -> None:
    done = _run(folder.parent, "--evicted")
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
    assert edgeplan.run(equal).outputs
    os.sched_setaffinity(0, pair[1:])
    _refused("needs 2 processors to execute and 0 beside them to prepare, there are 1 and 0", equal)
