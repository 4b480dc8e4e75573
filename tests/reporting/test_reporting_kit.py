"""What chapters declare is made, left out or explained by one rule, whatever their evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.page import markdown, table


@dataclass(frozen=True)
class Evidence:
    runs: pd.DataFrame | None = None


def _refused(e: Evidence) -> pd.DataFrame:
    raise kit.NotMeasuredError(f"of {len(e.runs or ())} runs none counts")


TABLES = kit.registry(
    kit.TableSpec[Evidence]("b", "Runs", lambda e: e.runs, ("runs.cold_ms",), lambda e: f"{len(e.runs)} runs."),  # type: ignore[arg-type, return-value]
    kit.TableSpec[Evidence]("a", "Refused", _refused),
)
RUNS = pd.DataFrame({"cold_ms": [1.5, 2.0]})


@pytest.mark.parametrize("runs", [None, RUNS[:0], RUNS.rename(columns={"cold_ms": "x"}), RUNS * float("nan")])
def test_absent_empty_and_unknown_inputs_are_one_thing(runs: pd.DataFrame | None) -> None:
    made, reasons = kit.make({"b": TABLES["b"]}, Evidence(runs))
    assert (made, reasons) == ({}, {"b": "there is no runs.cold_ms"})
    assert TABLES["b"].noted(Evidence(runs)) == ""


def test_what_is_there_is_made_and_the_rest_explained_in_order(tmp_path: Path) -> None:
    tables = kit.make_or_explain(TABLES, Evidence())
    assert list(tables) == ["b", "a"]
    assert tables["a"].to_dict("list") == {kit.REASON: ["of 0 runs none counts"]}
    seen = Evidence(RUNS)
    tables = kit.make({"b": TABLES["b"]}, seen)[0]
    (shown,) = kit.page_tables(TABLES, tables, seen, "b")
    kit.write_table(shown, tables["b"], tmp_path, "2024-05-06")
    frame = pd.read_csv(tmp_path / "b.csv")
    assert (frame["cold_ms"].tolist(), set(frame["measured_at"])) == ([1.5, 2.0], {"2024-05-06"})
    assert "2 runs." in (tmp_path / "b.md").read_text()
    assert (shown.id, shown.caption, shown.open) == ("b", "2 runs.", True)


def test_nothing_stands_where_a_whole_number_is_missing() -> None:
    frame = pd.DataFrame({"count": pd.array([1, None], dtype="Int64"), "ms": [0.5, float("nan")]})
    assert markdown(table("x", "X", "", frame)).splitlines()[2:] == ["| 1 | 0.5 |", "|  |  |"]
