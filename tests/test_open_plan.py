"""Plan folders of every kind opened by one function: what is run, and what is refused with one clear message."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_folders import changed_plan
from streamed_models import streamed

import edgeplan
from edgeplan import opening
from edgeplan.chapters.memory.plan import made_for, write_folder
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, InputError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import folder as folders
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME, read_folder, replacing, write_plan
from edgeplan.runtime.plan_folder import build_plan_folder

KINDS = ("cold-start", "memory")  # a pair: tests/chapters/partition/test_partition_pair.py


@pytest.fixture
def plan(request: pytest.FixtureRequest, dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> Path:
    """A plan folder of the kind that the test is for."""
    folder = tmp_path / "plan"
    if request.param == "memory":
        folder.mkdir()
        found = streamed(dnnl, "plain", tmp_path, 1 << 40)
        found.weights.rename(folder / WEIGHTS_NAME)
        write_folder(folder, found.built.program, made_for(found.model, dnnl, 1))
        made = read_folder(folder)
        write_plan(folder, "memory", made.made_for, made.schedule, made.prediction, ("program.json", WEIGHTS_NAME))
        return folder
    b = GraphBuilder("net", (1, 3, 16, 16))
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    return build_plan_folder(dnnl, model, planned(model, graph, threads=1, sources=["cached_read"]), folder)


every = pytest.mark.parametrize("plan", KINDS, indirect=True)


def _values(session: edgeplan.Session) -> dict[str, np.ndarray[Any, Any]]:
    return {border.name: np.ones(border.shape, border.dtype) for border in session.inputs}


def _equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@every
def test_a_plan_is_open_twice_at_once_and_in_a_thread(plan: Path) -> None:
    outputs: list[Mapping[str, Any]] = []

    def inside() -> None:
        with edgeplan.open_plan(plan) as session:
            outputs.append(session.run(_values(session)))

    with edgeplan.open_plan(plan) as one, edgeplan.open_plan(plan) as other:
        outputs += [one.run(_values(one)), other.run(_values(other)), one.run(_values(one))]
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        another = threading.Thread(target=lambda: outputs.append(other.run(_values(other))))
        another.start()
        another.join()
    assert len(outputs) == 5
    assert all(_equal(outputs[0], found) for found in outputs)
    with pytest.raises(DeviceError, match=r"was closed(?s:.*)open the plan again"):
        one.run(_values(one))
    one.close()


def _in_child(plan: Path, session: Any, told: Any) -> None:
    found = []
    for attempt in (lambda: session.run(_values(session)), lambda: edgeplan.open_plan(plan)):
        try:
            attempt()
            found.append("ran")
        except EdgeplanError as error:
            found.append(str(error))
    told.put(found)


@every
def test_a_fork_is_refused(plan: Path) -> None:
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    with edgeplan.open_plan(plan) as session:
        session.run(_values(session))
        child = context.Process(target=_in_child, args=(plan, session, told))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert all("was forked" in text and "start a fresh process" in text for text in told.get())
        session.run(_values(session))
    assert opening._forked is False


@every
def test_inputs_that_do_not_fit_are_named(plan: Path) -> None:
    with edgeplan.open_plan(plan) as session:
        (border,) = session.inputs
        right = _values(session)
        wrong = {
            "there is no array": {},
            "the model has no input 'more'": {**right, "more": np.ones(3, np.float32)},
            "float64": {border.name: np.ones(border.shape)},
            r"float32\[1,2\]": {border.name: np.ones((1, 2), np.float32)},
        }
        for told, given in wrong.items():
            with pytest.raises(InputError, match=f"{told}(?s:.*)expected float32") as caught:
                session.run(given)
            assert border.name in caught.value.next_step
        assert _equal(session.run(right), session.run(right[border.name]))


@every
@pytest.mark.parametrize(
    ("key", "value"), [("machine", "f" * 12), ("library", "0.1"), ("isa", "another isa"), ("driver", "a driver")]
)
def test_another_processor_library_or_driver_is_named(plan: Path, key: str, value: str) -> None:
    changed_plan(plan, lambda d: d["made_for"].update({key: value}))
    with pytest.raises(FormatError, match=f"{key} is .*, the plan is for {value}") as caught:
        edgeplan.open_plan(plan)
    assert f"edgeplan plan {read_folder(plan).kind}" in caught.value.next_step


@every
def test_what_is_half_there_or_damaged_is_refused(plan: Path) -> None:
    kind, whole = read_folder(plan).kind, {path.name: path.read_bytes() for path in plan.iterdir()}
    for name in ("plan.json", "program.json"):
        content = whole[name]
        middle = 200  # of the program of a cold start, what its tables are follows, and is looked at when it is needed
        changed = bytes([content[middle] ^ 1])
        for damage in (None, b"", content[:middle], content[:middle] + changed + content[middle + 1 :], b"null", b"\xff"):
            (plan / name).unlink() if damage is None else (plan / name).write_bytes(damage)
            with pytest.raises(FormatError) as caught:
                edgeplan.open_plan(plan).close()
            assert caught.value.where == str(plan / name)
            assert f"edgeplan plan {kind}" in caught.value.next_step
        (plan / name).write_bytes(content)
    with edgeplan.open_plan(plan) as session:
        session.run(_values(session))


@every
def test_a_plan_may_move(plan: Path, tmp_path: Path) -> None:
    with edgeplan.open_plan(plan) as session:
        wanted = session.run(_values(session))
    copied = Path(shutil.copytree(plan, tmp_path / "elsewhere" / "plan"))
    shutil.rmtree(plan)
    with edgeplan.open_plan(copied) as session:
        assert _equal(session.run(_values(session)), wanted)


@pytest.mark.parametrize("plan", ["memory"], indirect=True)
def test_damaged_weights_are_refused(plan: Path) -> None:
    weights = plan / WEIGHTS_NAME
    content = weights.read_bytes()
    changed = bytes([content[0] ^ 1]) + content[1:]
    for broken in (changed, content[:-4096], b"", content + bytes(4096), None):
        weights.unlink() if broken is None else weights.write_bytes(broken)
        with pytest.raises(ModelError, match="weights") as caught:
            edgeplan.open_plan(plan)
        assert "edgeplan plan memory" in caught.value.next_step


@pytest.mark.parametrize(
    ("files", "kind"),
    [
        ({"plan.json": '{"format_version":1,"mode":"isolated"}', "model.json": "{}", "weights.bin": ""}, "memory"),
        ({"plan.json": '{"format_version":1,"model":"m"}', "reserve.json": "{}"}, "cold-start"),
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


@pytest.mark.parametrize("plan", ["memory"], indirect=True)
def test_a_plan_with_a_schedule_of_its_first_inference_is_refused_with_the_command_that_makes_another(plan: Path) -> None:
    changed_plan(plan, lambda body: body["schedule"].update(first={"placed": body["schedule"]["placed"], "kernels": {}}))
    with pytest.raises(FormatError, match=r"has another format.*`first`") as caught:
        edgeplan.open_plan(plan)
    assert caught.value.next_step.endswith("edgeplan plan memory")


@every
def test_a_later_format_and_a_kind_that_is_none_are_refused(plan: Path) -> None:
    document = json.loads((plan / "plan.json").read_text())
    now, later = (b'"format_version":%d' % number for number in (folders.FORMAT, folders.FORMAT + 1))
    (plan / "plan.json").write_bytes((plan / "plan.json").read_bytes().replace(now, later))
    with pytest.raises(FormatError, match="has another format"):
        edgeplan.open_plan(plan)
    assert document["format_version"] == folders.FORMAT
    with pytest.raises(FormatError, match="there is no plan folder"):
        edgeplan.open_plan(plan / "nowhere")


@every
def test_writing_that_fails_leaves_the_old_plan(plan: Path) -> None:
    before = {path.name: path.read_bytes() for path in plan.iterdir()}

    def write() -> None:
        with replacing(plan) as building:
            (building / "plan.json").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(edgeplan.EdgeplanError, match="still works"):
        write()
    assert {path.name: path.read_bytes() for path in plan.iterdir()} == before
    assert not list(plan.parent.glob(".planning-*"))
