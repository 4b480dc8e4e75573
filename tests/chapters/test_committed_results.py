"""The tables and figures of merit in git are what the present code makes of the measured frames beside them, value by value."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.chapters.cold_start.evaluation.page import COLD_REPORT
from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT
from edgeplan.chapters.memory.evaluation.page import MEMORY_REPORT
from edgeplan.chapters.partition.eop.page import EOP_REPORT
from edgeplan.chapters.partition.evaluation.checked_page import CHECKED_REPORT
from edgeplan.chapters.partition.evaluation.page import PARTITION_REPORT
from edgeplan.reporting.chapter_report import ChapterReport

RESULTS = Path(__file__).parents[2] / "results"
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
    measured = shutil.copytree(RESULTS / folder, tmp_path / "measured", ignore=shutil.ignore_patterns("tables", "figures"))
    report.write(measured=measured, metrics=tmp_path / "metrics.json", chapter=tmp_path / target / f"{name}.page.json")
    wanted = json.loads((RESULTS / f"chapters/{target}/{name}.json").read_text())
    assert json.loads((tmp_path / "metrics.json").read_text()) == pytest.approx(wanted, rel=1e-5, nan_ok=True)
    tables = {path.name for path in (RESULTS / folder / "tables").glob("*.csv")}
    assert tables == {path.name for path in (measured / "tables").glob("*.csv")}
    for table in tables:
        made, kept = (pd.read_csv(place / "tables" / table) for place in (measured, RESULTS / folder))
        pd.testing.assert_frame_equal(made, kept, rtol=1e-4)
