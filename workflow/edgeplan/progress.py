"""The one progress bar: on a terminal a bar with an estimate of the time left, elsewhere a log line now and then."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

log = logging.getLogger(__name__)
_LOG_EVERY_SECONDS = 15.0


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of items just finished."""
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(description, total=total)
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
