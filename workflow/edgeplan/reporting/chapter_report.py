"""A chapter's report is one value: it says what is read of a target, what is made of it, written, and handed over as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic

import pandas as pd

from edgeplan.reporting.bars import Bar
from edgeplan.reporting.environment import environment_rows
from edgeplan.reporting.grade import Graded
from edgeplan.reporting.kit import (
    Evidence,
    FigureSpec,
    TableSpec,
    draw,
    make_or_explain,
    notes,
    page_pictures,
    page_tables,
    write_figures,
    write_tables,
)
from edgeplan.reporting.page import (
    CardOf,
    ChapterPage,
    bar_lines,
    machine_of,
    make_cards,
    metric_texts,
    rows_of,
    write_chapter,
)
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document, read_parquet

#: What is told of a target: from the evidence, the tables and the figures of merit, one paragraph each.
Findings = Callable[[Evidence, Mapping[str, pd.DataFrame], Mapping[str, Any]], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ChapterReport(Generic[Evidence]):
    """A chapter declares its part of the report once, whatever was measured.

    Attributes:
        id, title, about, told: see `ChapterPage`.
        headline: id of the figure that opens the chapter, where it could be drawn.
        unfolded: ids of tables that are unfolded at first.
        cards, bars: figures of merit that open it, and all that have a bar.
        tables, figures: registries.
        shares: how the names of figures begin that are shown in percent.
        metrics: figures of merit of the evidence.
        findings: see `Findings`.
        grade: how far the figures can be trusted, from the evidence.
        evidence: what is made of the name of a target, of `frames` and of `documents`, by their names.
        frames: stem of each Parquet file among the results, and the columns that it has to have.
        documents: stems of JSON files beside them.
        completed: adds to the page what only this chapter has, from the evidence, the tables and the figures of merit.
    """

    id: str
    title: str
    about: str
    headline: str
    unfolded: tuple[str, ...]
    cards: Sequence[CardOf]
    bars: Sequence[Bar]
    tables: Mapping[str, TableSpec[Evidence]]
    figures: Mapping[str, FigureSpec[Evidence]]
    metrics: Callable[[Evidence], dict[str, Any]]
    findings: Findings[Evidence]
    grade: Callable[[Evidence], Graded | None]
    evidence: Callable[..., Evidence] | None = None
    frames: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    documents: tuple[str, ...] = ("environment",)
    told: str = "Findings"
    shares: tuple[str, ...] = ()
    completed: Callable[[ChapterPage, Evidence, Mapping[str, pd.DataFrame], Mapping[str, Any]], ChapterPage] | None = None

    def read(self, target: str, folder: Path) -> Evidence:
        """Read the evidence of a target.

        Args:
            target: name of the device or pair.
            folder: folder that the measuring stage wrote.
        """
        assert self.evidence is not None  # noqa: S101  declared with frames
        frames = {name: read_parquet(folder / f"{name}.parquet", *columns) for name, columns in self.frames.items()}
        return self.evidence(target, **frames, **{name: read_document(folder / f"{name}.json") for name in self.documents})

    def write(self, *, measured: Path, metrics: Path, chapter: Path) -> None:
        """Write all that the chapter shows of a target; what cannot be shown says why. Nothing is measured.

        Args:
            measured: folder that the evidence is read from; tables and figures go there too.
            metrics: file of the figures of merit.
            chapter: file of the page, in a folder named by the target.
        """
        self.show(self.read(chapter.parent.name, measured), folder=measured, metrics=metrics, chapter=chapter)

    def show(self, evidence: Any, *, folder: Path, metrics: Path, chapter: Path) -> None:
        """Write all that the chapter shows of evidence at hand; see `write`.

        Args:
            evidence: evidence of the target.
            folder: folder that tables and figures go to.
            metrics: file of the figures of merit.
            chapter: file of the page.
        """
        tables, figures, found = make_or_explain(self.tables, evidence), draw(self.figures, evidence), self.metrics(evidence)
        dates = dict.fromkeys(tables, _measured_at(evidence.environment))
        write_tables(self.tables, tables, notes(self.tables, evidence, tables), dates, folder / "tables")
        write_figures(figures, folder / "figures")
        write_json(metrics, found)
        page = self.page(evidence, tables, figures, found)
        write_chapter(page, chapter, tables=folder / "tables", figures=folder / "figures")

    def page(
        self, evidence: Any, tables: Mapping[str, pd.DataFrame], figures: Mapping[str, bytes], metrics: Mapping[str, Any]
    ) -> ChapterPage:
        """Make the page of a target.

        Args:
            evidence: the measurements, with the `environment` they were made in.
            tables: tables by id; what is absent is left out.
            figures: SVG by id; likewise.
            metrics: figures of merit.
        """
        grade = self.grade(evidence)
        page = ChapterPage(
            id=self.id,
            title=self.title,
            about=self.about,
            measured_at=_measured_at(evidence.environment),
            headline=self.headline if self.headline in figures else "",
            cards=tuple(make_cards(self.cards, self.bars, metrics)),
            lines=tuple(bar_lines(self.bars, metrics, shares=self.shares)),
            metrics=metric_texts(metrics),
            told=self.told,
            findings=tuple(self.findings(evidence, tables, metrics)),
            pictures=page_pictures(self.figures, figures, notes(self.figures, evidence, figures)),
            tables=page_tables(self.tables, tables, notes(self.tables, evidence, tables), *self.unfolded),
            environment=tuple(environment_rows(evidence.environment).itertuples(index=False, name=None)),
            machine=machine_of(evidence.environment),
            rows=rows_of(evidence.environment),
            grade=grade.name if grade else "",
            graded=grade.why if grade else "",
        )
        return self.completed(page, evidence, tables, metrics) if self.completed else page


def _measured_at(environment: Mapping[str, Any]) -> str:
    return str(environment.get("measured_at", "unknown"))
