"""Writes to a terminal: text in any encoding, names from files without control characters, pipes that close."""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


#: Categories of characters that steer a terminal or hide text: control, format (direction, zero width), lone surrogates,
#: line and paragraph separators.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))
#: Exit code where the reader of the output has left,
CLOSED = 128 + signal.SIGPIPE  # as of a process that the signal ended, e.g. `yes | head`
_WIDTH = 120  # columns of tables where there is no terminal


def escaped(text: str, keep: str = "") -> str:
    r"""Return text with its control characters, but those of `keep`, as escapes (`\x1b`): a file's names steer no terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character in keep or unicodedata.category(character) not in _HIDDEN
        else character.encode("ascii", "backslashreplace").decode()
        if ord(character) > 0xFF  # what has no two digits
        else f"\\x{ord(character):02x}"
        for character in text
    )


def say(text: str, *, err: bool = False) -> None:
    """Print lines; control characters but the ends of lines are escaped."""
    stream = sys.stderr if err else sys.stdout
    if stream is not None:  # closed by the caller: nobody wants it
        print(escaped(text, "\n"), file=stream, flush=True)


def show(*parts: RenderableType) -> None:
    """Print what rich renders, in colours on a terminal. Names in it have to be `escaped` before."""
    from rich.console import Console  # noqa: PLC0415  errors should not wait for it

    if sys.stdout is None:
        return
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=sys.stdout.isatty())
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    sys.stdout.write(captured.get())
    sys.stdout.flush()


def figures_table(first: str, *others: str) -> Table:
    """Return a table without rows: a column of names, and columns of figures, to the right."""
    from rich.table import Table as RichTable  # noqa: PLC0415  likewise

    table = RichTable(first, box=None, pad_edge=False, header_style="bold")
    for name in others:
        table.add_column(name, justify="right")
    return table


#: Who is heard: what is taken for granted of a model, and what is known of a pair long before its plan is.
_TOLD = ("edgeplan.graph.onnx.prepare", "edgeplan.chapters.partition.checked.planning")


class EscapingFormatter(logging.Formatter):
    """Formats log lines that people read on a terminal: the message alone."""

    def format(self, record: logging.LogRecord) -> str:
        """Escape what steers a terminal."""
        return escaped(super().format(record), "\n")


def prepare_streams() -> None:
    """Make the streams take any text in any locale, and warnings of the library escape what they name."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if logging.lastResort is not None:  # prints warnings where nobody has set up logging
        logging.lastResort.setFormatter(EscapingFormatter())
    for name in _TOLD:
        told = logging.getLogger(name)
        if not told.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(EscapingFormatter())
            told.addHandler(handler)
            told.setLevel(logging.INFO)
            told.propagate = False


def flush_failure(stream: TextIO | None, *, suspected: bool = False) -> tuple[str, int] | None:
    """Flush the output; return None if it took all, or a message ("" for a reader that left early) and an exit code.

    Where something could not be written (`suspected`), what was being printed is not tried again, so a line end is.
    """
    if stream is None:
        return None
    try:
        if suspected:
            stream.write("\n")
        stream.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # the interpreter flushes again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if error.errno == errno.EPIPE:
            return "", CLOSED
        return f"error: cannot write to the standard output: {error.strerror}", 1
    return None


_SHORT_MS = 0.1


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or the mean of the two there (`statistics` takes a MiB)."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def milliseconds(ms: float, unit: str = " ms") -> str:
    """Return milliseconds with two decimals, or as many as two digits other than leading zeros take."""
    return f"{ms:.{1 - math.floor(math.log10(ms)) if 0 < ms < _SHORT_MS else 2}f}{unit}"
