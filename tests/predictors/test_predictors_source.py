"""Where predictors come from: the workspace before the package, times of nodes beside them, and what tells a model's nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from executed_nodes import relu
from quantised_models import network, quantised
from quick_bench import DEVICE
from trained_nodes import RULES, device_file, trained, write_device

from edgeplan.errors import DeviceError, FormatError, ModelError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.predictors import source
from edgeplan.predictors.nodes.storing import MEASURED, own_folder, read_measured, write_measured
from edgeplan.predictors.source import find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.machine import fingerprint


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, a state folder and shipped devices of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    monkeypatch.setattr(source, "SHIPPED", tmp_path / "shipped")
    (tmp_path / "config/devices").mkdir(parents=True)
    return tmp_path


def ship(folder: Path, name: str) -> None:
    """Lay out results of a device as the package has them."""
    made = write_device(folder / "made", name=name)
    (made / "fusion/rules.json").rename(made / "predictors/rules.json")
    (folder / "shipped").mkdir(exist_ok=True)
    (made / "predictors").rename(folder / "shipped" / name)


def test_times_of_nodes_come_back_and_are_the_same_bytes(tmp_path: Path) -> None:
    known = {relu(n).key: n / 7 for n in range(1, 50)}
    write_measured(tmp_path, known)
    first = (tmp_path / MEASURED).read_bytes()
    assert read_measured(tmp_path) == pytest.approx(known, rel=1e-6)
    write_measured(tmp_path, dict(reversed(known.items())))
    assert (tmp_path / MEASURED).read_bytes() == first
    assert read_measured(tmp_path / "nowhere") == {}
    write_measured(tmp_path, {})
    assert read_measured(tmp_path) == {}


def test_damaged_times_are_refused(tmp_path: Path) -> None:
    write_measured(tmp_path, {relu(n).key: 1.0 for n in range(1, 50)})
    content = (tmp_path / MEASURED).read_bytes()
    for share in (0.0, 0.3, 0.9):
        (tmp_path / MEASURED).write_bytes(content[: int(share * len(content))])
        with pytest.raises(FormatError, match="cannot be read") as caught:
            read_measured(tmp_path)
        assert caught.value.where == str(tmp_path / MEASURED)
    keys = np.array([b"a"])
    for us in ({"us": [-1.0]}, {"us": [np.nan]}, {"us": [1.0, 2.0]}, {}):
        np.savez(tmp_path / MEASURED, keys=keys, **{name: np.array(values) for name, values in us.items()})
        with pytest.raises(FormatError, match="remove the file"):
            read_measured(tmp_path)


def test_the_workspace_answers_before_the_package_and_the_package_where_it_does_not(own: Path) -> None:
    device_file(own / "config/devices")
    ship(own, "dev")
    found = find_predictors("dev")
    assert (found.shipped, found.here, found.folder) == (True, False, own / "shipped/dev")
    write_device(own / "results", known={"k": 3.0}, environment={"fingerprint": fingerprint(), "cpu": "Example CPU"})
    found = find_predictors("dev")
    assert (found.device, found.shipped, found.here, found.about()) == ("dev", False, True, "")
    assert (found.processor, found.known) == ("Example CPU", {"k": 3.0})
    with pytest.raises(FormatError, match="no predictors"):
        find_predictors("dev", own / "elsewhere")  # nowhere else, not even the package


@pytest.mark.parametrize("about", [None, {"fingerprint": "another"}, {"fingerprint": "mine"}])
def test_what_was_measured_besides_is_known_whoever_measured_the_device(own: Path, about: dict[str, str] | None) -> None:
    """Boards and GPUs have fingerprints of their own, and old rows none."""
    write_device(
        own / "results", environment=about and {key: value.replace("mine", fingerprint()) for key, value in about.items()}
    )
    predictor = trained()
    write_measured(own_folder("dev", predictor.engine, predictor.engine_version), {"k": 2.0})
    assert find_predictors("dev").known == {"k": 2.0}
    write_measured(own_folder("dev", predictor.engine, "another version"), {"j": 2.0})
    assert find_predictors("dev").known == {"k": 2.0}


def test_what_is_missing_is_named_with_what_to_do(own: Path) -> None:
    def following(name: str = "dev", engine: str = "") -> str:
        with pytest.raises(FormatError, match="no predictors of device 'dev'") as caught:
            find_predictors(name, engine=engine)
        return caught.value.next_step

    path = device_file(own / "config/devices")
    assert following().startswith("edgeplan device adapt dev (a minute), or make reproduce DEVICE=dev")
    assert "use one of" not in following()
    write_device(own / "results", name="other")
    assert following(str(path)).endswith("or use one of: other")
    assert "other" not in following(engine="openvino")
    (own / "results/dev/measurements").mkdir(parents=True)
    assert following().startswith("dvc repro training@dev")
    path.write_text("{format_version: 2, name: dev, engine: onnxruntime, transport: {kind: ssh, host: phone}}")
    (own / "results/dev/measurements").rmdir()
    assert following().startswith("make reproduce DEVICE=dev, in a checkout of edgeplan")  # a board's are not adapted
    with pytest.raises(DeviceError, match="unknown device 'nobody'"):
        find_predictors("nobody")


def test_a_file_and_its_graph_have_the_same_nodes(tmp_path: Path) -> None:
    path, teller = network(tmp_path / "net.onnx"), Teller(DEVICE, RULES)
    of_file, of_graph = teller.of_file(path, Preparation()), teller.of_graph(simplify(load_onnx(path)))
    assert (of_file.name, of_graph.name) == ("net.onnx", load_onnx(path).name)
    assert [one.config.op for one in of_file.nodes] == [one.config.op for one in of_graph.nodes]
    assert of_file.told_by == of_graph.told_by == f"onnxruntime {trained().engine_version}"
    apart = teller.of_graph(simplify(load_onnx(path)), fused=False)
    assert not any(one.config.attribute("activation", "") or one.config.domain for one in apart.nodes)


def test_a_file_of_eight_bits_is_told_as_it_is_and_what_is_no_model_refused(tmp_path: Path) -> None:
    told = Teller(DEVICE, RULES).of_file(quantised(tmp_path, "dynamic"), Preparation())
    assert {"ConvInteger", "DynamicQuantizeLinear"} <= {one.config.op for one in told.nodes}
    (tmp_path / "no.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        Teller(DEVICE, RULES).of_file(tmp_path / "no.onnx", Preparation())
