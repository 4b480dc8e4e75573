"""Files that stages hand over: damaged ones end the stage that reads them, and those in git are what the present code makes."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from cold_chapter_frames import evidence as cold_evidence
from cold_chapter_frames import frame_names
from evaluation_evidence import full_evidence
from shipped_params import PARAMS_FILE
from trained_nodes import device_file, write_device, write_measurements

from edgeplan.chapters.cold_start.evaluation.page import COLD_REPORT
from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT
from edgeplan.chapters.memory.evaluation.page import MEMORY_REPORT
from edgeplan.chapters.partition.evaluation.checked_page import CHECKED_REPORT
from edgeplan.chapters.partition.evaluation.eop_page import EOP_REPORT
from edgeplan.chapters.partition.evaluation.page import PARTITION_REPORT
from edgeplan.chapters.prediction.evaluation import tables as predicted
from edgeplan.chapters.prediction.evaluation.page import metrics
from edgeplan.chapters.registry import STAGES
from edgeplan.chapters.running import run_stage
from edgeplan.errors import FormatError
from edgeplan.reporting.chapter_report import ChapterReport, make
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_csv, read_document, read_parquet, write_parquet

RESULTS = Path("results/dev")
Damage = Callable[[Path, str], str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with every file that the stages read back, as they are written."""
    folder = tmp_path_factory.mktemp("whole")
    results, cold = write_measurements(folder, 1.0), cold_evidence()
    (folder / "data").mkdir()
    (folder / "zoo").rename(folder / "data/zoo")
    params = yaml.safe_load(PARAMS_FILE.read_text()) | {"transfer": {"source": "dev", "target": "dev"}}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / "config/devices").mkdir(parents=True)
    device_file(folder / "config/devices")
    write_device(folder / "results", environment={"cpu": "Example", "measured_at": "2024-05-06"})
    write_parquet(full_evidence().models, results / "evaluation/models.parquet")
    for name in frame_names():
        write_parquet(getattr(cold, name), results / f"cold/{name}.parquet")
    for name in ("notes", "environment"):
        write_json(results / f"cold/{name}.json", getattr(cold, name))
    for name in ("quality.parquet", "samplers.csv", "compared.parquet"):  # which evaluation reads last
        (results / "predictors" / name).touch()
    return folder


@pytest.fixture
def workspace(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage, as the working folder."""
    folder = tmp_path / "workspace"
    shutil.copytree(whole, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def run(name: str) -> None:
    """Run a stage for the device `dev`."""
    (stage,) = (stage for stage in STAGES if stage.name == name)
    run_stage(name, dict.fromkeys(stage.wildcards, "dev"))


def files(folder: Path) -> dict[Path, bytes]:
    """All files but logs and the message of the failure, and but metrics.json.

    That one is merged, and whole, before the page of the report is begun.
    """
    found = (path for path in folder.rglob("*") if path.is_file() and path.parent.name not in ("logs", "work"))
    return {path: path.read_bytes() for path in found if path.name != "metrics.json"}


def truncated(path: Path, _: str) -> str:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    return f"cannot read the table {path.stem}: " if path.suffix == ".parquet" else f"{path.name} is not valid JSON"


def of_another_version(path: Path, _: str) -> str:
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"edgeplan_table": b"2"}), path)
    else:
        path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    return f"{'the table ' + path.stem if path.suffix == '.parquet' else path.name} is of format version 2, expected 1"


def lacking(path: Path, what: str) -> str:
    if path.suffix == ".parquet":
        write_parquet(pd.read_parquet(path).drop(columns=what), path)
        return f"the table {path.stem} lacks the column {what!r}"
    path.write_text(json.dumps({key: value for key, value in json.loads(path.read_text()).items() if key != what}))
    return f"{path.name} lacks the key {what!r}"


#: Stage, a file it reads, and what has to be in it ("": nothing in particular).
READ = (
    ("training", RESULTS / "measurements/kernels.parquet", "latency_us"),
    ("training", RESULTS / "measurements/sampling.json", "call_us"),
    ("training", RESULTS / "calibration/models.parquet", "measured_ms"),
    ("training", RESULTS / "nodes/models.parquet", "config"),
    ("sampling", RESULTS / "nodes/models.parquet", "config"),
    ("nodes", Path("data/zoo/models.parquet"), "spec"),
    ("truth", Path("data/zoo/models.parquet"), "spec"),
    ("evaluation", Path("data/zoo/models.parquet"), "memory_bytes"),
    ("evaluation", RESULTS / "evaluation/truth.parquet", "measured_ms"),
    ("transfer", RESULTS / "evaluation/models.parquet", "predicted_ms"),
    ("transfer", RESULTS / "evaluation/environment.json", ""),
    ("cold_tables", RESULTS / "cold/runs.parquet", "cold_ms"),
    ("cold_tables", RESULTS / "cold/notes.json", ""),
)
#: Each lacks what has to be in it; a table and a document, which one function each reads, are damaged otherwise, too.
CASES: list[tuple[str, Path, str, Damage]] = [
    *((*read, lacking if read[2] else truncated) for read in READ),
    *((*read, damage) for read in READ[:2] for damage in (truncated, of_another_version)),
]


@pytest.mark.parametrize(("stage", "path", "what", "damage"), CASES)
def test_a_damaged_file_ends_the_stage_that_reads_it(
    workspace: Path, caplog: pytest.LogCaptureFixture, stage: str, path: Path, what: str, damage: Damage
) -> None:
    message = damage(path, what)
    before = files(workspace)
    with pytest.raises(SystemExit) as ended:
        run(stage)
    assert ended.value.code == FormatError.exit_code
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    first, where, following = said.splitlines()
    assert first.startswith(f"error: {message}")
    assert where == f"  where: {path}"
    assert "run the stage that writes it" in following
    assert files(workspace) == before


def test_tables_from_before_they_told_a_version_are_read(workspace: Path) -> None:
    path = RESULTS / "evaluation/models.parquet"
    pd.read_parquet(path).to_parquet(path, index=False)
    assert b"edgeplan_table" not in pq.read_schema(path).metadata
    run("transfer")
    (declared,) = (one for one in STAGES if one.name == "transfer")
    assert all((workspace / path.format(device="dev")).is_file() for path in declared.outputs.values())


def test_a_written_table_is_the_same_every_time_and_reads_back(tmp_path: Path) -> None:
    frame = pd.DataFrame({"model": ["a", None], "ms": [1.5, float("nan")], "index": [-1, 3], "empty": [None, None]})
    one, two, plain = (tmp_path / name for name in ("one.parquet", "two.parquet", "plain.parquet"))
    write_parquet(frame, one)
    write_parquet(frame, two)
    frame.to_parquet(plain, compression="zstd", index=False)
    assert one.read_bytes() == two.read_bytes()
    assert pq.read_schema(one).metadata[b"edgeplan_table"] == b"1"
    assert pq.read_table(one).equals(pq.read_table(plain))
    pd.testing.assert_frame_equal(read_parquet(one, "ms"), pd.read_parquet(plain))


@pytest.mark.parametrize("read", [read_parquet, read_csv, read_document])
def test_a_missing_file_is_named(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(FormatError, match=r"cannot read (the table )?gone.*: No such file or directory") as caught:
        read(tmp_path / "gone.json")
    assert caught.value.where == str(tmp_path / "gone.json")
    path = tmp_path / "about.json"
    path.write_text('{"b": 1, "format_version": 1, "a": {"c": [null]}}')
    assert list(read_document(path, "a").items()) == [("b", 1), ("a", {"c": [None]})]
    path.write_text("[1]")
    with pytest.raises(FormatError, match=r"about\.json must be a mapping"):
        read_document(path)


COMMITTED = Path(__file__).parents[2] / "results"
REPORTS = {
    "cpu-onednn/cold": (COLD_REPORT, "cold_start"),
    "cpu-onednn/memory": (MEMORY_REPORT, "memory"),
    "cuda-h200/cold_gpu": (GPU_REPORT, "cold_gpu"),
    "opencl-pocl/cold_gpu": (GPU_REPORT, "cold_gpu"),
    "pair-h200-8sm/partition/checked": (CHECKED_REPORT, "partition_checked"),
    "pair-pocl/partition": (PARTITION_REPORT, "partition"),
    "pair-pocl/partition/checked": (CHECKED_REPORT, "partition_checked"),
    "pair-pocl/partition/eop": (EOP_REPORT, "partition_eop"),
}


@pytest.mark.committed
@pytest.mark.parametrize("folder", REPORTS)
def test_tables_and_figures_of_merit_are_those_of_their_frames(folder: str, tmp_path: Path) -> None:
    report: ChapterReport = REPORTS[folder][0]
    name, target = REPORTS[folder][1], folder.partition("/")[0]
    measured = shutil.copytree(COMMITTED / folder, tmp_path / "measured", ignore=shutil.ignore_patterns("tables", "figures"))
    report.write(measured=measured, metrics=tmp_path / "metrics.json", chapter=tmp_path / target / f"{name}.page.json")
    wanted = json.loads((COMMITTED / f"chapters/{target}/{name}.json").read_text())
    assert json.loads((tmp_path / "metrics.json").read_text()) == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    tables = {path.name for path in (COMMITTED / folder / "tables").glob("*.csv")}
    assert tables == {path.name for path in (measured / "tables").glob("*.csv")}
    for table in tables:
        made, kept = (pd.read_csv(place / "tables" / table) for place in (measured, COMMITTED / folder))
        pd.testing.assert_frame_equal(made, kept, rtol=1e-4)


@pytest.mark.committed
@pytest.mark.parametrize("device", ["cpu-onednn", "cpu-onnxruntime", "cpu-openvino"])
def test_tables_and_figures_of_merit_of_predictions_are_those_of_their_frames(device: str) -> None:
    frames = {name: COMMITTED / device / path for name, path in predicted._FILES.items()}
    known = {name: predicted._table(path) for name, path in frames.items() if path.is_file()}
    known |= {name: read_document(COMMITTED / device / path) for name, path in predicted._DOCUMENTS.items()}
    measured = predicted.Evidence(device, **known)
    made, found = make(predicted.TABLES, measured)[0], metrics(measured)
    numbers = ("01", "03", "06", "07", "08", "12", "baselines", "conv_fusion")
    assert made.keys() >= {f"table_{number}" for number in numbers}
    assert found.keys() >= {"prediction.within_10pct", "fusion.recall", "interval.width_90"}
    wanted = json.loads((COMMITTED / f"chapters/{device}/prediction.json").read_text())
    assert found == pytest.approx({name: wanted[name] for name in found}, rel=1e-5)
    for name, frame in made.items():
        kept = pd.read_csv(COMMITTED / device / f"tables/{name}.csv").drop(columns="measured_at")
        pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(frame.to_csv(index=False))), kept, rtol=1e-4)
