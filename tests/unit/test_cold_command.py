"""`edgeplan plan cold-start`: it writes a plan, and refuses what it cannot plan before it measures."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import yaml
from onnx import TensorProto, helper
from tiny_profiled import own_state, tiny  # noqa: F401  a fixture
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.cold.profiling.target import target_of
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.onnx_export import save_onnx
from edgeplan.planning.cold_start.plan import check_fits, read_plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower


def _workspace(folder: Path, **fields: object) -> None:
    device = {"format_version": 1, "name": "dev", "engine": "onednn", **fields}
    (folder / "config/devices").mkdir(parents=True)
    (folder / "config/devices/dev.yaml").write_text(yaml.safe_dump(device))


def _cosh(path: Path) -> None:
    shape = [1, 4, 8, 8]
    node = helper.make_node("Cosh", ["x"], ["y"], name="odd")
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [values[0]], [values[1]])), path)


def test_the_command_writes_a_plan(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    arguments = ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", "--layouts", "nhwc", "--accept-noise"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "ms predicted" in done.output
    planned = read_plan(tmp_path / "plan" / "plan.json")
    check_fits(planned, target_of(tmp_path / "tiny.onnx", dnnl, planned.threads), tuple(s.name for s in lower(tiny()).steps))
    assert planned.layout == "nhwc"
    assert list((tmp_path / "data/rows/dev/cold").glob("*.parquet"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("odd.onnx", None, "Cosh"), ("bad.onnx", b"no model at all" * 9, "not a readable"), ("none.onnx", b"", "no model file")],
)
def test_the_command_refuses_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes | None, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    if content is None:
        _cosh(tmp_path / name)
    elif content:
        (tmp_path / name).write_bytes(content)
    done = CliRunner().invoke(app, ["plan", "cold-start", name, "-d", "dev", "-o", "plan"])
    assert isinstance(done.exception, ModelError)
    assert message in str(done.exception)
    assert not (tmp_path / "plan").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--planner", "best"], "no planner"), (["--layouts", "nwch"], "no layout"), (["--costs", "predicted"], "no predictors")],
)
def test_the_command_refuses_options(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    assert dnnl
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", *arguments])
    assert isinstance(done.exception, EdgeplanError)
    assert message in str(done.exception)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"big_cores": [0, 0]}, "named twice"),
        ({"little_cores": [1]}, "needed beside little_cores"),
        ({"little_ratio": 3.0}, "only with little_cores"),
        ({"big_cores": [0], "little_cores": [4096]}, "core 4096 does not exist"),
    ],
)
def test_core_sets_are_checked(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object], message: str
) -> None:
    assert dnnl
    monkeypatch.chdir(tmp_path)
    _workspace(tmp_path, **fields)
    save_onnx(tiny(), tmp_path / "tiny.onnx")
    done = CliRunner().invoke(app, ["plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan"])
    assert isinstance(done.exception, EdgeplanError)
    assert message in str(done.exception)
