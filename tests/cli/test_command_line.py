"""The command line as a whole: help everywhere, errors with what, where and next, plans from costs, no noise."""

from __future__ import annotations

import importlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from model_file_runs import made, node
from onnx import TensorProto, helper
from partition_frames import chain
from pydantic import ValidationError
from trained_nodes import write_device
from typer.testing import CliRunner

import edgeplan
from edgeplan import progress
from edgeplan.cli.commands import app
from edgeplan.devices.config import load_device
from edgeplan.errors import ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.partition.document import parse_costs, read_costs
from edgeplan.planning.partition.planner import BASELINES, PartitionPlan, plan
from edgeplan.progress import in_line

ROOT = Path(__file__).parents[2]
Edgeplan = Callable[..., Any]


def _commands(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(app)
    yield words, command
    for name in getattr(command, "commands", ()):
        yield from _commands(command.get_command(None, name), (*words, name))


@pytest.mark.parametrize("words", [words for words, _ in _commands()], ids=" ".join)
def test_every_command_helps_by_the_short_option_too(words: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert "Usage: " in short.output
    assert short.output == long.output
    version = CliRunner().invoke(app, ["--version"])
    assert (version.exit_code, version.output) == (0, f"edgeplan {edgeplan.__version__}\n")


COSTS = {
    "format_version": 1,
    "model": "netz-ä",
    "cpu_to_gpu_ms": 0,
    "gpu_to_cpu_ms": 0,
    "operators": [{"name": "größe", "options": [{"on": "cpu", "cpu_ms": 0}]}],
}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16-le", "utf-16-be"])
def test_documents_are_read_in_any_unicode_encoding(tmp_path: Path, encoding: str) -> None:
    """Windows' PowerShell writes a byte order mark before UTF-8, and UTF-16 where it redirects."""
    mark = "" if encoding in {"utf-8", "utf-8-sig"} else "\ufeff"
    device = "# größe\nformat_version: 1\nname: dev\nengine: onednn\n"
    for name, text in (("dev.yaml", device), ("c.json", json.dumps(COSTS, ensure_ascii=False))):
        (tmp_path / name).write_bytes((mark + text).encode(encoding))
    assert load_device(tmp_path / "dev.yaml").engine == "onednn"
    assert read_costs(tmp_path / "c.json").model == "netz-ä"


def test_warnings_of_onnx_runtime_stay_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It warns of a convolution whose output is declared without axes."""
    monkeypatch.chdir(tmp_path)
    model = made([node("Conv", "x w")], {"x": ["N", 3, 8, 8]}, {"w": np.ones((4, 3, 3, 3), np.float32)})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, []))
    onnx.save(model, "m.onnx")
    said = ""
    for words in ("prepare m.onnx -o p.onnx --check", "plan cold-start m.onnx -o plan --costs predicted", "run plan --check"):
        done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
        assert done.exit_code == 0
        said += done.output + "".join(capfd.readouterr())
    assert "largest difference from the original" in said
    assert "largest difference from ONNX Runtime" in said
    assert "\x1b" not in said
    assert "onnxruntime" not in said


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with predictors: enough to reach every error."""
    folder = tmp_path_factory.mktemp("cli")
    write_device(folder / "results")
    (folder / "config/devices").mkdir(parents=True)
    for name in ("dev", "phone"):
        (folder / f"config/devices/{name}.yaml").write_text(f"{{format_version: 1, name: {name}, engine: onnxruntime}}")
    (folder / "bad.json").write_text('{"format_version": 1}')
    b = GraphBuilder("net", (1, 3, 8, 8))
    save_onnx(b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 8, 3))), 5)), folder / "good.onnx")
    return folder


@pytest.mark.parametrize(
    ("words", "code", "message", "where", "following"),
    [
        ("predict none.onnx -d dev", 2, "no model file", "", "check the path"),
        ("predict good.onnx -d phone", 5, "no predictors of device 'phone'", "phone", "adapt phone .*, or use one of: .*cpu-"),
        ("device check nosuch", 3, "unknown device 'nosuch'", "ships", "known devices: cpu-onednn"),
        ("plan partition --costs bad.json -o plan.json", 5, "the cost document does not fit: model: Field required", "bad", ""),
    ],
)
def test_errors_say_what_where_and_what_to_do_and_leave_nothing(
    edgeplan: Edgeplan, workspace: Path, words: str, code: int, message: str, where: str, following: str
) -> None:
    done = edgeplan(*words.split(), folder=workspace)
    assert done.code == code, done.err
    assert "Traceback" not in done.err
    assert done.out == ""
    what, *rest = done.err.strip().splitlines()
    assert re.match(rf"error: .*{message}", what), done.err
    found = {line.strip().split(":")[0]: line.partition(":")[2].strip() for line in rest}
    assert where in found.get("where", "")
    assert re.search(following, found["next"]), done.err
    assert not (workspace / "plan.json").exists()


def test_arguments_that_do_not_fit(edgeplan: Edgeplan) -> None:
    done = edgeplan("device", "check", "x", "--seconds", "0")
    assert (done.code, done.out) == (2, "")
    assert "Usage" in done.err


_HOSTILE = ["$\\frac{1}{", "<script>&\"'", "\x1b[31mred", "a\nb", "\u202egnp", "[bold]x", "é漢字", "x" * 900]


@pytest.fixture
def chain_file(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(chain(12, 1, error=0.03)), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["plan", "partition", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_plan_is_told_written_and_read_again(chain_file: Path, tmp_path: Path) -> None:
    written = tmp_path / "out" / "plan.json"
    output = run("--costs", chain_file, "-o", written)
    assert "optimal, bound" in output
    assert output.count("conv") >= 12
    made = PartitionPlan.model_validate_json(written.read_bytes())
    again = plan(parse_costs(chain_file.read_bytes(), ""))
    assert made.model_copy(update={"planning_ms": 0.0}) == again.model_copy(update={"planning_ms": 0.0})
    found = json.loads(run("--costs", chain_file, "--json", "--compare"))
    assert (found["optimal"], found["gap"]) == (True, pytest.approx(0.0, abs=1e-9))
    assert [*found["compared_ms"]] == [*BASELINES]
    assert min(found["compared_ms"].values()) >= found["makespan_ms"] * 0.97
    assert [step["name"] for step in found["steps"]] == [f"conv{k}" for k in range(12)]


@pytest.mark.filterwarnings("error")
def test_names_reach_the_terminal_as_text_alone(tmp_path: Path) -> None:
    document = chain(len(_HOSTILE), 1, model="$m$\x1b]0;t\x07")
    for k, (entry, name) in enumerate(zip(document["operators"], _HOSTILE, strict=True)):
        entry |= {"name": name, "inputs": _HOSTILE[k - 1 : k] if k else [], "unsplittable": name}
    document["processors"] = {"cpu": "\x1b[1mcpu$", "gpu": "<g>"}
    (tmp_path / "hostile.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "costs.json").write_text(json.dumps(COSTS), encoding="utf-8")
    assert "optimal, bound 0 ms" in run("--costs", tmp_path / "costs.json", "--compare"), "which takes no time"
    output = run("--costs", tmp_path / "hostile.json")
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert "\\x1b[31mred" in output


@pytest.mark.parametrize("change", [{"makespan_ms": 0.001}, {"better_single_ms": 0.001}, {"format_version": 2}])
def test_a_plan_that_contradicts_itself_is_refused(chain_file: Path, change: dict[str, object]) -> None:
    made = plan(read_costs(chain_file)).model_dump(mode="json")
    with pytest.raises(ValidationError, match=next(iter(change))):
        PartitionPlan.model_validate_json(json.dumps(made | change))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan partition", "MODEL.onnx is missing"),
        ("plan partition m.onnx", "--pair is missing"),
        ("plan partition m.onnx --pair p", "--output is missing"),
        ("plan partition m.onnx --costs c.json", "costs say all that is planned from"),
        ("plan layout buffers.csv -o out.csv", "`plan layout` is removed"),
        ("device check", "a device or a pair is checked"),
        ("device check cpu-onednn --pair pair-pocl", "a device or a pair is checked"),
    ],
)
def test_what_is_lacking_contradicts_or_is_gone_is_told(words: str, message: str) -> None:
    error = CliRunner().invoke(app, words.split()).exception
    assert isinstance(error, ParamsError)
    assert message in error.what
    if "removed" in message:
        module, _, name = error.next_step.split()[-1].rpartition(".")
        assert callable(getattr(importlib.import_module(module), name))


def test_what_is_left_does_not_depend_on_how_fast_it_went_and_items_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "_LOG_EVERY_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    caplog.set_level(logging.INFO, progress.__name__)
    with progress.spending("dev: sampling", 300.0) as spent:
        spent.add(120.0)  # from the store, in no time
        spent.plan(60.0)
        spent.add(250.0)
    with progress.progress("dev: models", 4) as advance:
        advance(3)
        advance(1)
    *told, _, last = [record.getMessage() for record in caplog.records]
    assert told == [
        "dev: sampling: 0 of 300 s measured, about 300 s left",
        "dev: sampling: 120 of 300 s measured, about 180 s left",
        "dev: sampling: 120 of 360 s measured, about 240 s left",
        "dev: sampling: 370 s measured, longer than the 360 s estimated",
    ]
    assert last == "dev: models: 4 of 4, about 0 s left"


def test_rows_stand_in_a_log_as_words() -> None:
    rows = ({"way": "ours", "median_ms": 3.14159, "reason": ""}, {"way": "alone", "median_ms": math.nan, "reason": "refused"})
    assert in_line(*rows) == "way ours, median_ms 3.142; way alone, reason refused"
