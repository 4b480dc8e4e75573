"""Stage `report`: write one page of all devices and pairs, and the figures of merit of each in one file.

What people wrote, captions and remarks, is read here and by no stage before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import shorten

from edgeplan.chapters.base import ChapterParams
from edgeplan.chapters.registry import HANDED_OVER, parts_of_report
from edgeplan.errors import FormatError
from edgeplan.report.pages import PageSection, render_page, tally
from edgeplan.reporting.page import SUFFIX, ChapterPage, read_chapter, with_texts
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document

#: Most columns of a line of `summary`.
COLUMNS = 100
_CHAPTERS = Path(__file__).parents[1] / "chapters"


def write_report(*, params: ChapterParams, chapters: Path, remarks: Path, report: Path) -> None:
    """Gather what the chapters handed over of the targets in params.yaml.

    Args:
        params: params.yaml. What the folder holds besides is of other runs: the page names it and shows none of its figures.
        chapters: folder of what was handed over, by target: figures of merit and pages.
        remarks: folder of texts written by people, one paragraph a remark.
        report: the page; the figures of merit of all chapters of a target go beside it, to `<target>/metrics.json`.
    """
    parts = {
        chapters / Path(path).relative_to(HANDED_OVER): name for path, name in parts_of_report(params.model_dump()).items()
    }
    pages = {path: read_chapter(path) for path in parts if path.name.endswith(SUFFIX)}
    for target, figures in _merged(parts, pages).items():
        write_json(report.parent / target / "metrics.json", figures)
    shown = [PageSection(path.parent.name, _complete(path, page, parts[path], remarks)) for path, page in pages.items()]
    others = (path for path in sorted(chapters.glob(f"*/*{SUFFIX}")) if path not in pages)
    write_text(report, render_page(shown, [PageSection(path.parent.name, read_chapter(path)) for path in others]))


def summary(params: ChapterParams, chapters: Path = Path(HANDED_OVER)) -> list[str]:
    """Summarise each chapter of each target in params.yaml as a line: its first headline figure, its grade and its bars."""
    paths = [chapters / Path(path).relative_to(HANDED_OVER) for path in parts_of_report(params.model_dump())]
    read = [(path.parent.name, read_chapter(path)) for path in paths if path.name.endswith(SUFFIX)]
    return [line(target, page) for target, page in read if page.cards]


def line(target: str, page: ChapterPage) -> str:
    """Return a chapter of a target as one line of at most `COLUMNS`: what does not fit is left out, the bars first."""
    told = shorten(f"{page.title} on {target}: {page.cards[0].sentence}", COLUMNS, placeholder=" ...")
    for further in (f"grade {page.grade}" if page.grade else "not graded", f"bars: {tally(page.lines)}"):
        if len(told) + 2 + len(further) <= COLUMNS:
            told += f"; {further}"
    return told


def _complete(path: Path, page: ChapterPage, chapter: str, remarks: Path) -> ChapterPage:
    """Return a chapter that a stage handed over, with what people wrote of it."""
    target, name = path.parent.name, path.name.removesuffix(SUFFIX)
    text = target if name == "prediction" else f"{target}-{name.replace('_', '-')}"
    return with_texts(page, _CHAPTERS / chapter / "captions", remarks_of(remarks, text, page.rows))


def _merged(paths: Iterable[Path], pages: Mapping[Path, ChapterPage]) -> dict[str, dict[str, float | str]]:
    """Merge the figures of merit of all chapters by target, sorted by key, with the machine and the grade of each chapter."""
    found: dict[str, dict[str, float | str]] = {}
    for path in paths:
        if path not in pages:
            figures, target = read_document(path), found.setdefault(path.parent.name, {})
            if target.keys() & figures.keys():
                twice = min(target.keys() & figures.keys())
                raise FormatError(f"two chapters have a figure {twice}", where=str(path), next_step="rename one of them")
            target |= figures
    for path, page in pages.items():
        if path.parent.name in found:
            name = path.name.removesuffix(SUFFIX)
            told = {f"machine.{name}": page.machine_id, f"grade.{name}": page.grade}
            found[path.parent.name] |= {key: value for key, value in told.items() if value}
    return {target: dict(sorted(figures.items())) for target, figures in found.items()}


#: Begins the paragraph that says which rows a text is about: the machine's fingerprint, and the commits that measured them.
_ABOUT = "Rows: "


def remarks_of(folder: Path, name: str, rows: Sequence[str]) -> list[str]:
    """Read the paragraphs that people wrote about these rows; return none where there is no such text.

    Args:
        folder: folder of the texts.
        name: name of the text, without `.md`.
        rows: fingerprint and commits of the rows (`ChapterPage.rows`). Of a text about others a sentence says that it is there.
    """
    written = folder / f"{name}.md"
    paragraphs = [p.strip() for p in written.read_text().split("\n\n")] if written.is_file() else []
    about = next((p.removeprefix(_ABOUT).split() for p in paragraphs if p.startswith(_ABOUT)), [])
    if about and about != list(rows):
        return [f"What people wrote about other rows of this device, those of machine {about[0]}, is in {written}."]
    return [p for p in paragraphs if p and not p.startswith(_ABOUT)]
