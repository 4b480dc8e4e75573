"""One run, one page, one set of figures: what other runs left beside it is named, and stands under no name of this run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from edgeplan.chapters.params import Params
from edgeplan.chapters.registry import parts_of_report
from edgeplan.errors import FormatError
from edgeplan.report.stage import summary, write_report
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.page import SUFFIX, CardOf, ChapterPage, bar_lines, make_cards, write_chapter

ROOT = Path(__file__).parents[2]
PARAMS = Params.model_validate(
    yaml.safe_load((ROOT / "params.yaml").read_text())
    | {"devices": ["cpu-onnxruntime"]}
    | {"transfer": {"source": "cpu-onnxruntime", "target": "cpu-onnxruntime"}}
)
HERE, ELSEWHERE = "aaaaaaaa00000000", "bbbbbbbb00000000"


def hand_over(path: Path, value: float, machine: str, grade: str = "good") -> None:
    """What a chapter hands over: one figure with a bar, one without a value."""
    name = path.name.removesuffix(SUFFIX)
    figures = {f"{name}.ratio": value}
    bars = (Bar(f"{name}.ratio", "ratio", high=1), Bar(f"{name}.lost", "lost", high=1))
    page = ChapterPage(
        name.replace("_", "-"),
        name,
        "About.",
        "2026-11-28",
        cards=tuple(make_cards([CardOf("the ratio", (bars[0].key,)), CardOf("the lost one", (bars[1].key,))], bars, figures)),
        lines=tuple(bar_lines(bars, figures)),
        machine=f"Machine {machine[0]}",
        rows=(machine,),
        grade=grade,
        graded="Because.",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_chapter(page, path, tables=path.parent, figures=path.parent)
    path.with_name(f"{name}.json").write_text(json.dumps(figures))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Every part of this run, and beside them two of another machine's."""
    folder = tmp_path / "results"
    for path in (tmp_path / part for part in parts_of_report(PARAMS.model_dump()) if part.endswith(SUFFIX)):
        hand_over(path, 0.5, HERE)
    for other in ("cpu-openvino", "cpu-onednn"):
        hand_over(folder / f"chapters/{other}/prediction{SUFFIX}", 0.77777, ELSEWHERE, "poor")
    (tmp_path / "remarks").mkdir()
    for part in parts_of_report(PARAMS.model_dump()):  # one chapter hands over figures without a page
        if not part.endswith(SUFFIX) and not (tmp_path / part).exists():
            (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / part).write_text("{}")
    return folder


def build(results: Path) -> str:
    remarks, page = results.parent / "remarks", results / "report.html"
    write_report(params=PARAMS, chapters=results / "chapters", remarks=remarks, report=page)
    return page.read_text()


def test_all_parts_of_the_run_stand_on_the_first_screen_and_no_other_figure_does(results: Path) -> None:
    (results.parent / "remarks/cpu-onednn-cold-start.md").write_text("Seen by a person.\n")
    page = build(results)
    overview = page[page.index('id="overview"') : page.index("</section>")]
    assert "0.77777" not in page
    assert "0.778" not in page
    wanted = (
        "cpu-onnxruntime-prediction",
        "cpu-onednn-cold-start",
        "cpu-onednn-memory",
        *(f"{device}-cold-gpu" for device in PARAMS.model_dump()["cold_gpu"]["devices"]),
        "transfer-adaptation",
        *(f"{pair}-partition-checked" for pair in PARAMS.model_dump()["partition"]["checked_pairs"]),
        "pair-pocl-partition",
        "pair-pocl-partition-eop",
    )
    for place in wanted:
        assert f'href="#{place}"' in overview
        assert f'<section class="chapter" id="{place}"' in page
    shown, _, rest = overview.partition("Results of other runs beside this one")
    assert ELSEWHERE[:8] not in shown
    assert shown.count(f"({HERE[:8]})") == len(wanted) + 1
    assert "machines, told apart" not in shown
    assert re.findall(r"<li>prediction on (\S+): Machine b \(bbbbbbbb\), 2026-11-28", rest) == ["cpu-onednn", "cpu-openvino"]
    assert "Not measured by this run" in shown
    assert "memory on cpu-onednn: the lost one." in shown
    assert "Seen by a person." in page


def test_figures_of_merit_of_a_target_are_those_of_this_run_with_machine_and_grade(results: Path) -> None:
    earlier = results / "cpu-openvino/metrics.json"
    earlier.parent.mkdir()
    earlier.write_text("earlier")
    build(results)
    assert json.loads((results / "cpu-onednn/metrics.json").read_text()) == {
        "cold_start.ratio": 0.5,
        "grade.cold_start": "good",
        "grade.memory": "good",
        "machine.cold_start": HERE,
        "machine.memory": HERE,
        "memory.ratio": 0.5,
    }
    assert earlier.read_text() == "earlier", "of another run, which the page names"
    assert (
        not (results / "transfer/metrics.json").exists()
        or "transfer.ratio" not in (results / "transfer/metrics.json").read_text()
    )


def test_rows_of_another_machine_among_those_of_the_run_are_told_apart(results: Path) -> None:
    hand_over(results / f"chapters/cpu-onednn/memory{SUFFIX}", 0.5, ELSEWHERE)
    page = build(results)
    assert "These rows are of 2 machines" in page
    assert json.loads((results / "cpu-onednn/metrics.json").read_text())["machine.memory"] == ELSEWHERE


def test_a_line_says_what_came_out_of_each(results: Path) -> None:
    told = summary(PARAMS, results / "chapters")
    assert (
        "memory on cpu-onednn: the ratio 0.5 (pass); no value: the lost one; bars: 1 of 2 pass, 1 without a value; grade good"
        in told
    )
    document = PARAMS.model_dump()
    assert len(told) == 7 + len(document["partition"]["checked_pairs"]) + len(document["cold_gpu"]["devices"])


def test_a_missing_part_and_a_figure_of_two_chapters_are_errors(results: Path) -> None:
    memory = results / "chapters/cpu-onednn/memory.json"
    memory.write_text('{"cold_start.ratio": 1.0}')
    with pytest.raises(FormatError, match=r"two chapters have a figure cold_start\.ratio"):
        build(results)
    memory.unlink()
    with pytest.raises(FormatError, match=r"memory\.json"):
        build(results)
    assert not (results / "report.html").exists()
