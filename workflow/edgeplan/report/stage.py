"""Stage `report`: write one page of all devices and pairs, and the figures of merit of each in one file.

What people wrote, captions and remarks, is read here and by no stage before.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import shorten

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from edgeplan.chapters.base import ChapterParams
from edgeplan.chapters.registry import HANDED_OVER, parts_of_report
from edgeplan.errors import FormatError
from edgeplan.reporting.bars import NO_VALUE, PASS, UNDECIDED
from edgeplan.reporting.drawing import PALETTE, inline, width_pt
from edgeplan.reporting.page import SUFFIX, ChapterPage, Line, read_chapter, with_texts
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_CODE = re.compile("`([^`]+)`")
#: A sentence ends before a blank that a capital, a digit or code follows.
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
#: What a section shows of its text before the rest is folded: lines, and characters in one.
_LINES, _LINE = 10, 95
#: What a caption or a finding shows before the rest is folded, in characters.
_LEAD = 2 * _LINE
#: Figures of at most this width (points) have their caption beside them, others below.
_NARROW_PT = 880
#: Most columns of a line of `summary`.
COLUMNS = 100
_CHAPTERS = Path(__file__).parents[1] / "chapters"
#: Begins the paragraph that says which rows a text is about: the machine's fingerprint, and the commits that measured them.
_ABOUT = "Rows: "


@dataclass(frozen=True, slots=True)
class PageSection:
    """Places a chapter of one target on the page: several targets have a chapter of the same kind."""

    target: str
    page: ChapterPage

    @property
    def at(self) -> str:
        """Return the prefix of ids in the section."""
        return f"{self.target}-"

    def place(self, name: str) -> str:
        """Return the id of a table or picture on the page; a figure of a paper may be both."""
        return f"{self.at}{name}"

    def picture(self, name: str) -> str:
        """Return the id of a picture on the page."""
        return self.place(f"{name}-figure" if name in {table.id for table in self.page.tables} else name)


def render_page(sections: Sequence[PageSection], others: Sequence[PageSection] = ()) -> str:
    """Render the report as HTML, one file that asks for no other: chapters of this run in their order, others by name alone."""
    ids = {section.place(table.id) for section in sections for table in section.page.tables}
    ids |= {section.picture(picture.id) for section in sections for picture in section.page.pictures}
    pages = Environment(
        loader=PackageLoader("edgeplan.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "prose": partial(prose, ids=frozenset(ids)),
        "parts": parts,
        "shown": shown_first,
        "drawn": lambda document, name: Markup(inline(document, name)),  # noqa: S704  drawn by this package, which escapes labels
        "wide": lambda document: width_pt(document) > _NARROW_PT,
        "cells": _cells,
        "signs": _signs,
        "tally": tally,
        "days": _days,
        "number_unit": _number_unit,
    }
    script = Markup(pages.get_template("script.js.j2").render())  # noqa: S704  a file of this package
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return pages.get_template("report.html.j2").render(
        sections=sections, others=others, script=script, script_sha256=digest, series=len(PALETTE)
    )


def prose(text: str, at: str = "", ids: frozenset[str] = frozenset()) -> Markup:
    """Return a text as HTML: escaped, with what stands between backticks as code.

    Code that names a table or figure of its section (whose ids begin with `at`) is a link to it. An odd backtick stays.
    """

    def code(found: re.Match[str]) -> str:
        name = found[1]
        place = f"{at}{name}"
        return f'<a href="#{place}"><code>{name}</code></a>' if place in ids else f"<code>{name}</code>"

    return Markup(_CODE.sub(code, str(escape(text))))  # noqa: S704  the text is escaped before


def parts(text: str) -> tuple[str, str]:
    """Split a text into its first sentences, as many as two lines hold but at least one, and the rest."""
    first, *others = _SENTENCE.split(text)
    while others and len(first) + 1 + len(others[0]) <= _LEAD:
        first = f"{first} {others.pop(0)}"
    return first, " ".join(others)


def shown_first(texts: Sequence[str]) -> int:
    """Count the texts of a section that are shown, by their first sentences; the others are folded."""
    left = _LINES
    for i, text in enumerate(texts):
        left -= -(-len(parts(text)[0]) // _LINE)
        if left < 0:
            return i
    return len(texts)


def _number_unit(value: str) -> tuple[str, str]:
    number, _, unit = value.rpartition(" ")
    return (number, unit) if number and not unit[0].isdigit() and value != NO_VALUE else (value, "")


def _cells(lines: Sequence[Line]) -> list[tuple[str, ...]]:
    return [(line.title, line.verdict, line.value, _signs(line.bar), _signs(line.aim)) for line in lines]


def tally(lines: Sequence[Line]) -> str:
    """Count the figures that reach their bars, as text: the undecided and those without a value apart."""
    told = [f"{sum(line.verdict == PASS for line in lines)} of {len(lines)} pass"]
    undecided, lost = sum(line.verdict == UNDECIDED for line in lines), sum(line.value == NO_VALUE for line in lines)
    told += [f"{undecided} undecided"] * bool(undecided) + [f"{lost} without a value"] * bool(lost)
    return ", ".join(told)


def _days(measured_at: str) -> str:
    """Return the first and the last day that a text names; the text itself where it names none."""
    found = sorted(_DAY.findall(measured_at))
    return measured_at if not found else found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _signs(limit: str) -> str:
    return limit.replace(">=", "\u2265").replace("<=", "\u2264").replace(" %", "\u00a0%")


def write_report(*, params: ChapterParams, chapters: Path, remarks: Path, report: Path) -> None:
    """Gather what the chapters handed over of the targets in params.yaml into one page.

    The figures of merit of all chapters of a target go beside it, to `<target>/metrics.json`.
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


def remarks_of(folder: Path, name: str, rows: Sequence[str]) -> list[str]:
    """Read the paragraphs that people wrote about these rows (`ChapterPage.rows`); return none where there is no such text.

    Of a text about others a sentence says that it is there.
    """
    written = folder / f"{name}.md"
    paragraphs = [p.strip() for p in written.read_text().split("\n\n")] if written.is_file() else []
    about = next((p.removeprefix(_ABOUT).split() for p in paragraphs if p.startswith(_ABOUT)), [])
    if about and about != list(rows):
        return [f"What people wrote about other rows of this device, those of machine {about[0]}, is in {written}."]
    return [p for p in paragraphs if p and not p.startswith(_ABOUT)]
