"""Declares, makes and writes every chapter's tables and figures, and hands them over to its page.

What cannot be shown raises `NotMeasuredError` with the reason. A chapter leaves it out, or shows the reason in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import pandas as pd

from edgeplan.reporting.page import (
    PageTable,
    Picture,
    table,
)
from edgeplan.reporting.svg import svg
from edgeplan.reporting.table import write_table
from edgeplan.support.files import write_atomically

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
        title: one line.
        function: makes it; raises `NotMeasuredError` where the evidence does not hold what it shows.
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


def notes(specs: Mapping[str, Spec[Evidence, Any]], evidence: Evidence, shown: Iterable[str]) -> dict[str, str]:
    """Return the evidence's additions to the captions of what is shown, by id, where there are any."""
    return {name: specs[name].noted(evidence) for name in shown if specs[name].note}


def write_tables(
    specs: Mapping[str, TableSpec[Any]],
    tables: Mapping[str, pd.DataFrame],
    added: Mapping[str, str],
    measured_at: Mapping[str, str],
    folder: Path,
) -> None:
    """Write tables as csv and md; those of an earlier run that are not among them go.

    Args:
        specs: declarations of the tables.
        tables: tables by id.
        added: additions to captions, from `notes`.
        measured_at: when the measurements of each were made, as text.
        folder: folder that they go to.
    """
    for name, frame in tables.items():
        write_table(frame, folder / name, specs[name].title, added.get(name, ""), measured_at[name])
    _only(folder, tables, ".csv", ".md")


def write_figures(figures: Mapping[str, bytes], folder: Path) -> None:
    """Write figures of `draw`, each as `<id>.svg`; those of an earlier run that are not among them go."""
    for name, data in figures.items():
        write_atomically(folder / f"{name}.svg", partial(Path.write_bytes, data=data))
    _only(folder, figures, ".svg")


def _only(folder: Path, names: Iterable[str], *suffixes: str) -> None:
    """Remove files of a kind that have none of the names: a folder that a stage renews holds what it wrote last."""
    kept = {f"{name}{suffix}" for name in names for suffix in suffixes}
    for path in folder.glob("*"):
        if path.suffix in suffixes and path.name not in kept:
            path.unlink()


def page_tables(
    specs: Mapping[str, TableSpec[Any]], tables: Mapping[str, pd.DataFrame], added: Mapping[str, str], *unfolded: str
) -> tuple[PageTable, ...]:
    """Return tables as the page shows them, in the order of the report; those named last are unfolded at first."""
    return tuple(
        table(name, spec.title, added.get(name, ""), tables[name], unfolded=name in unfolded)
        for name, spec in specs.items()
        if name in tables
    )


def page_pictures(
    specs: Mapping[str, FigureSpec[Any]], figures: Mapping[str, bytes], added: Mapping[str, str]
) -> tuple[Picture, ...]:
    """Return figures as the page shows them, in the order of the report."""
    return tuple(
        Picture(name, spec.title, added.get(name, ""), figures[name].decode())
        for name, spec in specs.items()
        if name in figures
    )
