"""Shows progress: on a terminal a bar with an estimate of the time left, elsewhere a log line now and then.

It counts items, or, for a stage that measures within budgets, seconds of measuring. The time left is then what is left of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from edgeplan.terminal import escaped

log = logging.getLogger(__name__)
_LOG_EVERY_SECONDS = 15.0


def in_line(*rows: Mapping[Any, object]) -> str:
    """Write rows as a line of a log, `way ours, median_ms 3.21; ...`: numbers to four digits, what is not there left out."""
    return "; ".join(", ".join(f"{name} {text}" for name, value in row.items() if (text := _value(value))) for row in rows)


def _value(value: object) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return "" if value is None else str(value)


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    return Progress(TextColumn("{task.description}", markup=False), BarColumn(), *columns, console=console)


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items just finished."""
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console, MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task(escaped(description), total=total)
            yield lambda done: bar.advance(task, done)
        return
    started = last = time.monotonic()
    count = 0

    def advance(done: int) -> None:
        nonlocal count, last
        count += done
        now = time.monotonic()
        if now - last >= _LOG_EVERY_SECONDS or count >= total:
            left = (now - started) / max(count, 1) * max(total - count, 0)
            log.info("%s: %d of %d, about %.0f s left", description, count, total, left)
            last = now

    yield advance


class BudgetProgress:
    """Counts the measuring time that a stage has spent, in seconds, of what it will take, and shows both after each change."""

    def __init__(self, planned: float, show: Callable[[float, float], None]) -> None:
        self.spent, self.planned, self._show = 0.0, planned, show

    def add(self, seconds: float) -> None:
        """Note measuring time; that of stored rows counts, too, as it will not be spent again."""
        self.spent += seconds
        self._show(self.spent, self.planned)

    def plan(self, seconds: float) -> None:
        """Note that the stage will take so many seconds more than was known."""
        self.planned += seconds
        self._show(self.spent, self.planned)


@contextmanager
def spending(description: str, seconds: float) -> Iterator[BudgetProgress]:
    """Yield what counts the measuring time of a whole stage."""
    console = Console(stderr=True)
    if console.is_terminal:
        with _bar(console, TextColumn("{task.fields[left]}"), TimeElapsedColumn()) as bar:
            task = bar.add_task(escaped(description), total=seconds, left=_left(0.0, seconds))
            yield BudgetProgress(
                seconds, lambda spent, total: bar.update(task, completed=spent, total=total, left=_left(spent, total))
            )
        return
    last = time.monotonic()

    def tell(spent: float, planned: float) -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_EVERY_SECONDS:
            log.info("%s: %s", description, _left(spent, planned))
            last = time.monotonic()

    log.info("%s: %s", description, _left(0.0, seconds))
    yield BudgetProgress(seconds, tell)


def _left(spent: float, planned: float) -> str:
    if spent > planned:
        return f"{spent:.0f} s measured, longer than the {planned:.0f} s estimated"
    return f"{spent:.0f} of {planned:.0f} s measured, about {planned - spent:.0f} s left"
