"""One run, one page, one set of figures: what other runs left beside it is named, and stands under no name of this run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.cold_start.evaluation.page import COLD_REPORT
from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT
from edgeplan.chapters.memory.evaluation.page import MEMORY_REPORT
from edgeplan.chapters.partition.eop.page import EOP_REPORT
from edgeplan.chapters.partition.evaluation.checked_page import CHECKED_REPORT
from edgeplan.chapters.partition.evaluation.page import PARTITION_REPORT
from edgeplan.chapters.prediction.evaluation.page import PREDICTION_REPORT
from edgeplan.chapters.registry import Params, parts_of_report
from edgeplan.errors import FormatError
from edgeplan.report.stage import COLUMNS, line, summary, write_report
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.page import SUFFIX, CardOf, ChapterPage, bar_lines, make_cards, write_chapter

ROOT = Path(__file__).parents[2]
PARAMS = Params.model_validate(
    yaml.safe_load(PARAMS_FILE.read_text())
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
        cards=tuple(make_cards([CardOf("has a ratio of {}", bars[0].key), CardOf("loses {}", bars[1].key)], bars, figures)),
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
    assert "has a ratio of 0.5" in shown
    assert "Without a value" in shown
    assert "memory on cpu-onednn: no value: loses ...." in shown
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
    assert not (results / "transfer/metrics.json").exists()


def test_rows_of_another_machine_among_those_of_the_run_are_told_apart(results: Path) -> None:
    hand_over(results / f"chapters/cpu-onednn/memory{SUFFIX}", 0.5, ELSEWHERE)
    page = build(results)
    assert "These rows are of 2 machines" in page
    assert json.loads((results / "cpu-onednn/metrics.json").read_text())["machine.memory"] == ELSEWHERE


def test_a_line_says_what_came_out_of_each(results: Path) -> None:
    told = summary(PARAMS, results / "chapters")
    assert "memory on cpu-onednn: has a ratio of 0.5; grade good; bars: 1 of 2 pass, 1 without a value" in told
    document = PARAMS.model_dump()
    assert len(told) == 6 + len(document["partition"]["checked_pairs"]) + len(document["cold_gpu"]["devices"])


@pytest.mark.parametrize(
    "chapter", ["prediction", "cold_start", "cold_gpu", "memory", "partition", "partition_checked", "partition_eop"]
)
def test_the_first_sentence_of_a_chapter_fits_into_its_line(chapter: str) -> None:
    """With a value of three digits; the grade and the bars where there is room."""
    report = {
        "prediction": PREDICTION_REPORT,
        "cold_start": COLD_REPORT,
        "cold_gpu": GPU_REPORT,
        "memory": MEMORY_REPORT,
        "partition": PARTITION_REPORT,
        "partition_checked": CHECKED_REPORT,
        "partition_eop": EOP_REPORT,
    }[chapter]
    seen = SimpleNamespace(device="x", environment={"second_on_cores": True})
    first = (report.cards[0], next(card for card in report.cards if not card.further))
    for card in report.cards:
        assert card.title.count("{}") == 1
        (made,) = make_cards([card], report.bars(seen), {card.key: 0.123})
        page = ChapterPage("x", report.title, "", "", cards=(made,), grade="fair")
        assert len(line("a-device-with-a-name-of-more-than-thirty-letters", page)) <= COLUMNS
        if card in first:
            assert line("pair-h200-8sm", page).startswith(f"{report.title} on pair-h200-8sm: {made.sentence}")


def test_a_missing_part_and_a_figure_of_two_chapters_are_errors(results: Path) -> None:
    memory = results / "chapters/cpu-onednn/memory.json"
    memory.write_text('{"cold_start.ratio": 1.0}')
    with pytest.raises(FormatError, match=r"two chapters have a figure cold_start\.ratio"):
        build(results)
    memory.unlink()
    with pytest.raises(FormatError, match=r"memory\.json"):
        build(results)
    assert not (results / "report.html").exists()
