"""A page is a chapter's part of the report: values that say what is shown, not how it is laid out."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from edgeplan.errors import FormatError
from edgeplan.reporting.bars import NO_VALUE, Bar, interval_of, value_of
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document

_AGAIN = "run the stage that writes it again (dvc repro)"
#: What stands between two cells; a bar within a cell is escaped.
_BETWEEN = re.compile(r"(?<!\\)\|")
#: How the name of a file ends that holds a chapter.
SUFFIX = ".page.json"


def cell_text(value: Any) -> str:
    """Return a cell as people read it: four significant digits, nothing for a missing value."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None or value is pd.NA:
        return ""
    if not isinstance(value, float | np.floating):
        return str(value)
    number = float(value)
    if math.isnan(number):
        return ""
    digits = max(0, 3 - math.floor(math.log10(abs(number)))) if number and math.isfinite(number) else 0
    text = f"{number:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def markdown(shown: PageTable) -> str:
    """Return a table in Markdown; numbers are aligned to the right."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rules = "|".join("---:" if numeric else "---" for numeric in shown.numeric)
    return "\n".join([line(shown.columns), f"|{rules}|", *map(line, shown.rows)]) + "\n"


def read_markdown(path: Path) -> tuple[tuple[str, ...], tuple[bool, ...], tuple[tuple[str, ...], ...]]:
    """Read the columns of a table that `markdown` wrote, which of them are of numbers, and its rows, as people read them."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"cannot read the table {path.stem}: {error}", where=str(path), next_step=_AGAIN) from error
    cells = [tuple(cell.strip().replace("\\|", "|") for cell in _BETWEEN.split(line)[1:-1]) for line in lines]
    if len(cells) < 2 or any(len(row) != len(cells[0]) for row in cells):  # names and rules
        raise FormatError(f"{path.name} holds no table", where=str(path), next_step=_AGAIN)
    return cells[0], tuple(rule.endswith(":") for rule in cells[1]), tuple(cells[2:])


def write_table(shown: PageTable, frame: pd.DataFrame, folder: Path, measured_at: str) -> None:
    """Write a table as csv (for programs, with a column `measured_at`, a text) and md (for people), named by its id."""
    text = frame.assign(measured_at=measured_at).to_csv(index=False, float_format="%.6g", lineterminator="\n")
    write_text(folder / f"{shown.id}.csv", text)
    note = f"{shown.caption}\n\n" if shown.caption else ""
    write_text(folder / f"{shown.id}.md", f"# {shown.title}\n\n{note}{markdown(shown)}\nMeasured: {measured_at}\n")


def flat_environment(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a captured environment without nesting: names joined by dots, lists as text."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flat_environment(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat


def environment_rows(environment: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return a captured environment as rows of property and value; nested names are joined by dots."""
    return tuple((key, str(value)) for key, value in sorted(flat_environment(environment).items()))


def caption(folder: Path, name: str) -> str:
    """Read the caption of a table or figure from the folder of captions, one Markdown file each, as one line."""
    path = folder / f"{name}.md"
    try:
        return " ".join(path.read_text(encoding="utf-8").split())
    except OSError as error:
        step = "write what it shows, and in which units"
        raise FormatError(f"{name} has no caption", where=str(path), next_step=step) from error


@dataclass(frozen=True, slots=True)
class Line:
    """Holds a figure against its bar: its title, its value, bar and aim as text, and its verdict (`bars.Verdict`)."""

    title: str
    value: str
    bar: str
    aim: str
    verdict: str


@dataclass(frozen=True, slots=True)
class PageCard:
    """Holds a figure that opens a chapter: a sentence about the target with `{}` in the place of the value, number and unit."""

    title: str
    value: str
    verdict: str = ""
    bar: str = ""
    aim: str = ""
    paper: str = ""
    interval: str = ""

    @property
    def sentence(self) -> str:
        """Return the title with its value; without one it says so."""
        lost = self.value == NO_VALUE
        return f"{NO_VALUE}: {self.title.replace('{}', '...')}" if lost else self.title.replace("{}", self.value)


@dataclass(frozen=True, slots=True)
class Picture:
    """Holds a figure: `svg` is a whole document as `drawing.svg` writes it."""

    id: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class PageTable:
    """Holds a table with its cells as text; `numeric`: columns of numbers, `open`: unfolded at first."""

    id: str
    title: str
    caption: str
    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    open: bool = False


@dataclass(frozen=True, slots=True)
class ChapterPage:
    """Holds a chapter of the report.

    `about` says what is measured and how it compares with the paper, `told` is the title of the findings, one paragraph each;
    `headline` is the id of the picture that opens the chapter, three to five cards with it. All figures that have a bar are
    `lines`, all by name, as text, `metrics`. `rows` are the fingerprint of the machine and the commits that measured, which
    remarks about these rows name; `grade` (`bars.Grade`, "" where nothing tells) says how far the figures can be trusted,
    `graded` why so.
    """

    id: str
    title: str
    about: str
    measured_at: str
    headline: str = ""
    cards: tuple[PageCard, ...] = ()
    lines: tuple[Line, ...] = ()
    metrics: tuple[tuple[str, str], ...] = ()
    told: str = "Findings"
    findings: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[PageTable, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    machine: str = ""
    rows: tuple[str, ...] = ()
    grade: str = ""
    graded: str = ""

    @property
    def machine_id(self) -> str:
        """Return the fingerprint of the machine that was measured; "" where it is not known."""
        return self.rows[0] if self.rows else ""

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the headline figures without a value, as sentences."""
        return tuple(card.sentence for card in self.cards if card.value == NO_VALUE)


_CHAPTER = TypeAdapter(ChapterPage)


def write_chapter(chapter: ChapterPage, path: Path, *, tables: Path, figures: Path) -> None:
    """Write a chapter for `read_chapter`, atomically.

    Its tables (`write_table`) and figures (`<id>.svg`) stay in their folders: the document names their files, and the digests
    by which it changes with them.
    """
    document = dataclasses.asdict(chapter)
    for part in document["tables"]:
        for key in ("columns", "numeric", "rows"):
            del part[key]
        part.update(_named(tables / f"{part['id']}.md", path.parent))
    for part in document["pictures"]:
        del part["svg"]
        part.update(_named(figures / f"{part['id']}.svg", path.parent))
    write_json(path, document)


def _named(file: Path, folder: Path) -> dict[str, str]:
    """Return the path of a file, seen from a folder, and the digest of what it holds."""
    return {"file": os.path.relpath(file, folder), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()[:16]}


def read_chapter(path: Path) -> ChapterPage:
    """Read a chapter that a stage handed over, with its tables and figures."""
    document = read_document(path)
    try:
        for part in document["tables"]:
            columns, numeric, rows = read_markdown(_file(part, path))
            part.update({"columns": columns, "numeric": numeric, "rows": rows})
        for part in document["pictures"]:
            part["svg"] = _file(part, path).read_text(encoding="utf-8")
        return _CHAPTER.validate_python(document)
    except (ValidationError, KeyError, TypeError, AttributeError, OSError, UnicodeDecodeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        why = f"{first['msg']} ({first['loc']})" if first else f"{type(error).__name__}: {error}"
        raise FormatError(
            f"{path.name} is no chapter of a report: {why}", where=str(path), next_step="run the stage that writes it again"
        ) from error


def _file(part: dict[str, Any], path: Path) -> Path:
    """Return the file that a part of a document names; its digest has done its work once the document changed."""
    del part["sha256"]
    return path.parent / str(part.pop("file"))


def with_texts(chapter: ChapterPage, captions: Path, remarks: Iterable[str]) -> ChapterPage:
    """Return a chapter with what people wrote of it, which no stage before the report reads: captions, and remarks.

    The folder of captions holds `tables` and `figures`, a text for each id; it may be absent.
    """
    findings = (*remarks, *chapter.findings)
    if not captions.is_dir():
        return dataclasses.replace(chapter, findings=findings)
    pictures = (dataclasses.replace(p, caption=_joined(captions / "figures", p.id, p.caption)) for p in chapter.pictures)
    tables = (dataclasses.replace(t, caption=_joined(captions / "tables", t.id, t.caption)) for t in chapter.tables)
    return dataclasses.replace(chapter, findings=findings, pictures=tuple(pictures), tables=tuple(tables))


def _joined(folder: Path, name: str, note: str) -> str:
    return f"{caption(folder, name)} {note}".rstrip()


def machine_line(environment: Mapping[str, Any]) -> str:
    """Return the machine of a captured environment, as a line; what it does not tell is left out."""
    versions = " ".join(str(environment[key]) for key in ("engine", "engine_version") if key in environment)
    sizes = (("cores", "{} cores"), ("memory_gib", "{} GiB"))
    parts = [environment.get("cpu"), *(text.format(environment[key]) for key, text in sizes if key in environment)]
    parts += ["virtual" if environment.get("virtualised") else "", versions]
    return ", ".join(str(part) for part in parts if part)


def origin_of(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fingerprint of the machine and the commits that measured, of a captured environment."""
    return (str(environment.get("fingerprint", "")), *map(str, environment.get("commits", ())))


def table(name: str, title: str, note: str, frame: pd.DataFrame, *, unfolded: bool = False) -> PageTable:
    """Return a frame as a table with its cells as text."""
    numeric = tuple(bool(pd.api.types.is_numeric_dtype(frame[c])) for c in frame.columns)
    rows = tuple(tuple(cell_text(v) for v in row) for row in frame.itertuples(index=False, name=None))
    return PageTable(name, title, note, tuple(str(c) for c in frame.columns), numeric, rows, unfolded)


def _number(value: float, *, share: bool = False) -> str:
    """Return a figure as text; a share in percent."""
    return f"{cell_text(100 * float(value))} %" if share else cell_text(float(value))


def metric_texts(metrics: Mapping[str, float]) -> tuple[tuple[str, str], ...]:
    """Format all figures by name, as text."""
    return tuple((name, _number(metrics[name])) for name in sorted(metrics))


def bar_lines(held: Iterable[Bar], metrics: Mapping[str, Any], *, shares: tuple[str, ...] = ()) -> list[Line]:
    """Return a line for each bar; a figure without a value misses its bar, one whose key begins as `shares` is in percent."""
    lines = []
    for bar in held:
        as_text = partial(_number, share=bar.key.startswith(shares))
        lines.append(Line(bar.title, bar.told(metrics, as_text), bar.limits(as_text), bar.aim, bar.verdict(metrics)))
    return lines


@dataclass(frozen=True, slots=True)
class CardOf:
    """Describes a card of the first screen: a sentence about the target with `{}` in the place of the figure `key`.

    A unit follows the number, `paper` is the paper's value as text. `further`: only some profiles measure the figure, which is
    left out where it has no value; every profile measures the others.
    """

    title: str
    key: str
    unit: str = ""
    paper: str = ""
    share: bool = False
    further: bool = False


def make_cards(wanted: Iterable[CardOf], bars: Sequence[Bar], metrics: Mapping[str, Any]) -> list[PageCard]:
    """Return the cards, each held against its figure's bar; one without a value says so, or is left out if `further`."""
    by_key = {bar.key: bar for bar in bars}
    cards = []
    for card in wanted:
        value, bar, ends = value_of(metrics, card.key), by_key.get(card.key), interval_of(metrics, card.key)
        if card.further and value is None:
            continue
        told = NO_VALUE if value is None else f"{_short(value, card)} {'%' if card.share else card.unit}".rstrip()
        held = (bar.verdict(metrics), bar.limits(partial(_number, share=card.share)), bar.aim) if bar else ("", "", "")
        interval = " to ".join(_short(end, card) for end in ends) + " %" * card.share if ends else ""
        cards.append(PageCard(card.title, told, *held, card.paper, interval))
    return cards


def _short(value: float, card: CardOf) -> str:
    """Return a figure in three digits; a share in percent, rounded down, so that what is not all does not read 100."""
    return f"{math.floor(1000 * value + 1e-6) / 10:g}" if card.share else f"{value:.3g}"
