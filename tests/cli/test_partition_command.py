"""`edgeplan plan partition`: what it prints, writes and refuses."""

import json
import sys
from pathlib import Path

import pytest
from partition_frames import chain
from pydantic import ValidationError
from typer.testing import CliRunner

from edgeplan.cli import app, main
from edgeplan.errors import FormatError, ParamsError
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.planner import BASELINES, PartitionPlan, plan

_HOSTILE = ["$\\frac{1}{", "<script>&\"'", "\x1b[31mred", "a\nb", "\u202egnp", "[bold]x", "é漢字", "x" * 900]


@pytest.fixture
def chain_file(tmp_path: Path) -> Path:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(chain(12, 1).document(error=0.03)), encoding="utf-8")
    return path


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    document = chain(len(_HOSTILE), 1).document(model="$m$\x1b]0;t\x07")
    for k, (entry, name) in enumerate(zip(document["operators"], _HOSTILE, strict=True)):
        entry |= {"name": name, "inputs": _HOSTILE[k - 1 : k] if k else [], "unsplittable": name}
    document["processors"] = {"cpu": "\x1b[1mcpu$", "gpu": "<g>"}
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps(document), encoding="utf-8")
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


def test_json_holds_the_plan_its_gap_and_the_comparison(chain_file: Path) -> None:
    found = json.loads(run("--costs", chain_file, "--json", "--compare"))
    assert found["optimal"] is True
    assert found["gap"] == pytest.approx(0.0, abs=1e-9)
    assert list(found["compared_ms"]) == list(BASELINES)
    assert min(found["compared_ms"].values()) >= found["makespan_ms"] * 0.97
    assert [step["name"] for step in found["steps"]] == [f"conv{k}" for k in range(12)]


@pytest.mark.filterwarnings("error")
def test_names_reach_the_terminal_as_text_alone(hostile_file: Path) -> None:
    output = run("--costs", hostile_file)
    assert "\x1b" not in output
    assert "\u202e" not in output
    assert "\\x1b[31mred" in output


def test_a_model_that_takes_no_time_is_planned(tmp_path: Path) -> None:
    operators = [{"name": "reshape", "options": [{"on": "cpu", "cpu_ms": 0}]}]
    document = {"format_version": 1, "model": "m", "cpu_to_gpu_ms": 0, "gpu_to_cpu_ms": 0, "operators": operators}
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    assert "optimal, bound 0 ms" in run("--costs", path, "--compare")


@pytest.mark.parametrize("change", [{"makespan_ms": 0.001}, {"better_single_ms": 0.001}, {"format_version": 2}])
def test_a_plan_that_contradicts_itself_is_refused(chain_file: Path, tmp_path: Path, change: dict[str, object]) -> None:
    path = tmp_path / "plan.json"
    run("--costs", chain_file, "-o", path)
    changed = json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change})
    with pytest.raises(ValidationError, match=next(iter(change))):
        PartitionPlan.model_validate_json(changed)


def test_errors_are_one_message_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "costs.json"
    bad.write_text('{"format_version": 1}', encoding="utf-8")
    written = tmp_path / "plan.json"
    monkeypatch.setattr(sys, "argv", ["edgeplan", "plan", "partition", "--costs", str(bad), "-o", str(written)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == FormatError.exit_code
    told = capsys.readouterr().err
    assert told.startswith("error: the cost document does not fit: model: Field required")
    assert told.count("\n") == 3
    assert not written.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL.onnx is missing"),
        (["m.onnx"], "--pair is missing"),
        (["m.onnx", "--pair", "p"], "--output is missing"),
        (["m.onnx", "--costs", "c.json"], "costs say all that is planned from"),
    ],
)
def test_what_a_plan_is_made_from_is_asked_for(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", "partition", *arguments])
    assert isinstance(done.exception, ParamsError)
    assert message in str(done.exception)


def test_a_device_or_a_pair_is_checked() -> None:
    for arguments in ([], ["cpu-onednn", "--pair", "pair-pocl"]):
        done = CliRunner().invoke(app, ["device", "check", *arguments])
        assert isinstance(done.exception, ParamsError)
