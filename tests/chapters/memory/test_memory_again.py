"""Cases that were measured again stand for the kept ones, and nothing else changes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from shipped_params import PARAMS_FILE

from edgeplan.chapters.memory.measuring import COLUMNS
from edgeplan.chapters.memory.settings import MemoryParams
from edgeplan.chapters.memory.stages import memory as stage
from edgeplan.chapters.params import load_params
from edgeplan.support.frames import read_parquet

ROOT = Path(__file__).parents[3]
STORED, ENVIRONMENT = "data/rows/cpu-onednn/memory", "results/cpu-onednn/memory/environment.json"


@dataclass
class Workspace:
    """A copy of the stored rows."""

    folder: Path
    params: MemoryParams

    def table(self) -> pd.DataFrame:
        """The table of the stage; nothing may be measured."""
        runs = self.folder / "runs.parquet"
        where = {"device": ROOT / "config/devices/cpu-onednn.yaml", "rows": self.folder / "rows", "work": self.folder / "work"}
        stage.measure_memory(self.params, **where, runs=runs, environment_path=self.folder / "environment.json")
        return read_parquet(runs)

    def again(self, model: str, case: str, at: int, **values: float | str) -> None:
        """Keep a row of a case that was measured again."""
        row = pd.DataFrame([{"model": model, "case": case, **values}]).reindex(columns=[*COLUMNS, "measured_at", "machine"])
        kept = stage._kept_again(self.folder / "rows")
        key = stage._key(model, self.params.seed, self.params.memory, stage.PROTOCOL.name)
        kept.commit({f"{key}-{case}-{at}": row})
        kept.merge()


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """With the rows of this repository."""
    monkeypatch.setenv(stage.STORED_ROWS_ONLY, "1")
    params = load_params(PARAMS_FILE)
    assert isinstance(params, MemoryParams)
    shutil.copytree(ROOT / STORED, tmp_path / "rows")
    shutil.rmtree(tmp_path / "rows" / "again", ignore_errors=True)
    shutil.copy(ROOT / ENVIRONMENT, tmp_path / "environment.json")
    return Workspace(tmp_path, params)


@pytest.mark.committed
def test_the_latest_rows_of_a_case_stand_for_the_kept_ones(workspace: Workspace) -> None:
    before = workspace.table()
    assert "machine" not in before
    for at, peak in ((2, 7.0), (1, 5.0)):
        workspace.again("mobilenetv2", "least", at, peak=peak, machine="another")
    after = workspace.table()
    one = (before["model"] == "mobilenetv2") & (before["case"] == "least")
    assert after.loc[one, ["peak", "machine"]].to_numpy().tolist() == [[7.0, "another"]]
    assert (after.loc[~one, "machine"] == "").all()
    pd.testing.assert_frame_equal(after.loc[~one, before.columns], before[~one])


@pytest.mark.committed
def test_the_machine_of_the_stored_rows_stays_theirs(workspace: Workspace) -> None:
    workspace.table()
    assert (workspace.folder / "environment.json").read_text() == (ROOT / ENVIRONMENT).read_text()
