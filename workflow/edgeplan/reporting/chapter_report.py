"""A chapter's report is one value: it says what is read of a target, what is made of it, written, and handed over as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import pandas as pd

from edgeplan.reporting.bars import Bar, Graded
from edgeplan.reporting.drawing import svg
from edgeplan.reporting.page import (
    CardOf,
    ChapterPage,
    Line,
    PageTable,
    Picture,
    bar_lines,
    environment_rows,
    machine_line,
    make_cards,
    metric_texts,
    origin_of,
    table,
    write_chapter,
    write_table,
)
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document, read_parquet

#: What a chapter's tables and figures are made of.
Evidence = TypeVar("Evidence")
Made = TypeVar("Made")
#: The one column of a table that says why there is none.
REASON = "not measured"


class NotMeasuredError(LookupError):
    """Reports that there is nothing to show; the message says why."""


@dataclass(frozen=True)
class Spec(Generic[Evidence, Made]):
    """A specification declares a table or figure of a chapter.

    Attributes:
        id: stem of its files and of its caption, `captions/<tables or figures>/<id>.md` beside the chapter.
        needs: attributes of the evidence that it cannot be made without; `models.low_ms`: one column of a table.
        note: function that returns what the evidence adds to its caption, "" for nothing.
    """

    id: str
    title: str
    function: Callable[[Evidence], Made]
    needs: tuple[str, ...] = ()
    note: Callable[[Evidence], str] | None = None

    def make(self, evidence: Evidence) -> Made:
        """Make the table or figure from the evidence."""
        self._check(evidence)
        return self.function(evidence)

    def _check(self, evidence: Evidence) -> None:
        for need in self.needs:
            name, _, column = need.partition(".")
            part = getattr(evidence, name)
            if part is None or not len(part) or (column and (column not in part.columns or part[column].isna().all())):
                raise NotMeasuredError(f"there is no {need}")

    def noted(self, evidence: Evidence) -> str:
        """Return the caption's addition; "" for nothing, and where the evidence does not hold it."""
        try:
            self._check(evidence)
            return self.note(evidence) if self.note else ""
        except NotMeasuredError:
            return ""


class TableSpec(Spec[Evidence, pd.DataFrame]):
    """Declares a table: units are in the names of its columns."""


class FigureSpec(Spec[Evidence, Any]):
    """This specification declares a figure of Matplotlib."""


AnySpec = TypeVar("AnySpec", bound=Spec[Any, Any])


def registry(*specs: AnySpec) -> Mapping[str, AnySpec]:
    """Return declarations by id, in the order of the report."""
    return MappingProxyType({spec.id: spec for spec in specs})


def make(specs: Mapping[str, Spec[Evidence, Made]], evidence: Evidence) -> tuple[dict[str, Made], dict[str, str]]:
    """Make the tables or figures that can be made, by id in the order of the report, and say why the others cannot."""
    made, reasons = dict[str, Made](), dict[str, str]()
    for name, spec in specs.items():
        try:
            made[name] = spec.make(evidence)
        except NotMeasuredError as error:
            reasons[name] = str(error)
    return made, reasons


def make_or_explain(specs: Mapping[str, TableSpec[Evidence]], evidence: Evidence) -> dict[str, pd.DataFrame]:
    """Make all tables by id; one that cannot be made has the reason as its one cell, under `REASON`."""
    made, reasons = make(specs, evidence)
    explained = made | {name: pd.DataFrame({REASON: [why]}) for name, why in reasons.items()}
    return {name: explained[name] for name in specs}


def draw(specs: Mapping[str, FigureSpec[Evidence]], evidence: Evidence) -> dict[str, bytes]:
    """Draw the figures that can be drawn, as SVG by id."""
    return {name: svg(figure) for name, figure in make(specs, evidence)[0].items()}


def page_tables(
    specs: Mapping[str, TableSpec[Evidence]], tables: Mapping[str, pd.DataFrame], evidence: Evidence, *unfolded: str
) -> tuple[PageTable, ...]:
    """Return tables as the page shows them, in the order of the report; those named last are unfolded at first."""
    made = ((spec, tables[name]) for name, spec in specs.items() if name in tables)
    return tuple(table(s.id, s.title, s.noted(evidence), frame, unfolded=s.id in unfolded) for s, frame in made)


def _only(folder: Path, names: Iterable[str], *suffixes: str) -> None:
    """Remove files of a kind that have none of the names: a folder that a stage renews holds what it wrote last."""
    kept = {f"{name}{suffix}" for name in names for suffix in suffixes}
    for path in folder.glob("*"):
        if path.suffix in suffixes and path.name not in kept:
            path.unlink()


def write_shown(page: ChapterPage, tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write a page's tables (csv, md) and figures (`<id>.svg`); those of an earlier run that are not among them go."""
    for shown in page.tables:
        write_table(shown, tables[shown.id], folder / "tables", page.measured_at)
    for picture in page.pictures:
        write_text(folder / "figures" / f"{picture.id}.svg", picture.svg)
    _only(folder / "tables", tables, ".csv", ".md")
    _only(folder / "figures", [picture.id for picture in page.pictures], ".svg")


#: What is told of a target: from the evidence, the tables and the figures of merit, one paragraph each.
Findings = Callable[[Evidence, Mapping[str, pd.DataFrame], Mapping[str, Any]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ChapterReport(Generic[Evidence]):
    """A chapter declares its part of the report once, whatever was measured.

    Attributes:
        headline: id of the figure that opens the chapter, where it could be drawn.
        cards, bars: figures of merit that open it, and all that have a bar, which may depend on the target.
        evidence: what is made of the name of a target, of `frames` and of `documents`, by their names.
        frames: stem of each Parquet file among the results, and the columns that it has to have.
        documents: stems of JSON files beside them.
        shares: how the names of figures begin that are shown in percent.
        completed: adds to the lines of the bars what only this chapter has.
    """

    id: str
    title: str
    about: str
    headline: str
    unfolded: tuple[str, ...]
    cards: Sequence[CardOf]
    bars: Callable[[Evidence], Sequence[Bar]]
    tables: Mapping[str, TableSpec[Evidence]]
    figures: Mapping[str, FigureSpec[Evidence]]
    metrics: Callable[[Evidence], dict[str, float]]
    findings: Findings[Evidence]
    grade: Callable[[Evidence], Graded | None]
    evidence: Callable[..., Evidence] | None = None
    frames: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    documents: tuple[str, ...] = ("environment",)
    shares: tuple[str, ...] = ()
    completed: Callable[[Evidence, Sequence[Line]], Sequence[Line]] = lambda _, lines: lines

    def read(self, target: str, folder: Path) -> Evidence:
        """Read the evidence of a target (device or pair) from the folder that its measuring stage wrote."""
        assert self.evidence is not None  # noqa: S101  declared with frames
        frames = {name: read_parquet(folder / f"{name}.parquet", *columns) for name, columns in self.frames.items()}
        return self.evidence(target, **frames, **{name: read_document(folder / f"{name}.json") for name in self.documents})

    def write(self, *, measured: Path, metrics: Path, chapter: Path) -> None:
        """Write all that the chapter shows of a target; what cannot be shown says why. Nothing is measured."""
        self.show(self.read(chapter.parent.name, measured), folder=measured, metrics=metrics, chapter=chapter)

    def show(self, evidence: Any, *, folder: Path, metrics: Path, chapter: Path) -> None:
        """Write all that the chapter shows of evidence at hand, tables and figures into `folder`; see `write`."""
        tables, figures, found = make_or_explain(self.tables, evidence), draw(self.figures, evidence), self.metrics(evidence)
        page = self.page(evidence, tables, figures, found)
        write_shown(page, tables, folder)
        write_json(metrics, found)
        write_chapter(page, chapter, tables=folder / "tables", figures=folder / "figures")

    def page(
        self, evidence: Any, tables: Mapping[str, pd.DataFrame], figures: Mapping[str, bytes], metrics: Mapping[str, Any]
    ) -> ChapterPage:
        """Make the page of a target: of tables, of figures (SVG) and of figures of merit by id; what is absent is left out.

        The evidence holds the `environment` it was measured in.
        """
        grade, bars, of = self.grade(evidence), self.bars(evidence), evidence.environment
        drawn = [spec for name, spec in self.figures.items() if name in figures]
        return ChapterPage(
            id=self.id,
            title=self.title,
            about=self.about,
            measured_at=str(of.get("measured_at", "unknown")),
            headline=self.headline if self.headline in figures else "",
            cards=tuple(make_cards(self.cards, bars, metrics)),
            lines=tuple(self.completed(evidence, bar_lines(bars, metrics, shares=self.shares))),
            metrics=metric_texts(metrics),
            findings=tuple(self.findings(evidence, tables, metrics)),
            pictures=tuple(Picture(s.id, s.title, s.noted(evidence), figures[s.id].decode()) for s in drawn),
            tables=page_tables(self.tables, tables, evidence, *self.unfolded),
            environment=environment_rows(of),
            machine=machine_line(of),
            rows=origin_of(of),
            grade=grade.name if grade else "",
            graded=grade.why if grade else "",
        )
