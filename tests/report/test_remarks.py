"""Remarks of people are about certain rows, and shown in the reports of those alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeplan.report.stage import remarks_of
from edgeplan.reporting.page import rows_of
from edgeplan.support.frames import read_document


@pytest.mark.parametrize(
    ("fingerprint", "commits", "shown"),
    [("aa", ["c1", "c2"], True), ("bb", ["c1", "c2"], False), ("aa", ["c3"], False), (None, None, False)],
)
def test_remarks_are_shown_for_the_rows_that_they_are_about(
    tmp_path: Path, fingerprint: str | None, commits: list[str] | None, shown: bool
) -> None:
    (tmp_path / "dev.md").write_text("Rows: aa c1 c2\n\nOne.\n\nTwo\nlines.\n")
    known = {} if fingerprint is None else {"fingerprint": fingerprint, "commits": commits}
    found = remarks_of(tmp_path, "dev", rows_of(known))
    assert (found == ["One.", "Two\nlines."]) is shown
    assert shown or (len(found) == 1 and "machine aa" in found[0])


def test_a_text_that_names_no_rows_is_about_all(tmp_path: Path) -> None:
    (tmp_path / "dev.md").write_text("One.\n")
    assert remarks_of(tmp_path, "dev", ("aa",)) == ["One."]
    assert remarks_of(tmp_path, "other", ("aa",)) == []


@pytest.mark.parametrize("device", ["cpu-onnxruntime", "cpu-openvino", "cpu-onednn"])
@pytest.mark.committed
def test_the_committed_texts_are_about_the_committed_rows(device: str) -> None:
    root = Path(__file__).parents[2]
    found = remarks_of(
        root / "docs/remarks", device, rows_of(read_document(root / "results" / device / "evaluation/environment.json"))
    )
    assert len(found) > 1
