"""The script of every stage: it calls the function that the rule names, with what the rule gives by name.

Logging, the check of params.yaml, and errors that end with their message are the same for all.
"""

# Snakemake puts its own lines before these: no import from __future__ may follow them.
import logging
import sys

from edgeplan.support import lifeline, termination

if "snakemake" in globals():  # before what takes seconds to import
    termination.end_orderly()
    lifeline.end_with_holder(asked=True)

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from edgeplan.chapters.base import ChapterParams, load
from edgeplan.chapters.calling import arguments
from edgeplan.errors import EdgeplanError
from edgeplan.params import load_params
from edgeplan.support.files import write_text
from edgeplan.terminal import formatter, prepare
from edgeplan.writable import cannot_write, expected, require_writable

_INSTEAD = "clone to a folder of yours"

#: The exit code and the message of the stage that failed last, for who started the whole run.
ERROR = Path("work/error.txt")


@contextmanager
def stage(snakemake: Any) -> Iterator[ChapterParams]:
    """Yield the validated params.yaml; log to the rule's log and to the terminal.

    An `EdgeplanError` ends the process with its message and exit code instead of a traceback.
    """
    prepare()
    terminal = logging.StreamHandler()
    terminal.setFormatter(formatter())
    logging.basicConfig(level=logging.INFO, handlers=[terminal])
    try:
        _log_to(Path(snakemake.log[0]))
        for folder in dict.fromkeys(Path(output).parent for output in snakemake.output):
            require_writable(folder, instead=_INSTEAD)  # before minutes of measuring, not after them
        yield load_params(Path("params.yaml"))
    except EdgeplanError as error:
        _end(error)
    except OSError as error:
        if (message := expected(error)) is None:
            raise
        _end(message)


def run(snakemake: Any) -> None:
    """Call the function of a rule."""
    with stage(snakemake) as params:
        given = dict(snakemake.params.items())
        function, sections = load(given.pop("function")), given.pop("sections")
        paths = dict(snakemake.input.items()) | dict(snakemake.output.items()) | given
        function(**arguments(function, params, sections, paths, dict(snakemake.wildcards.items())))


def _log_to(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = logging.FileHandler(path, mode="w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(error, path, instead=_INSTEAD) from error
    kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(kept)


def _end(error: EdgeplanError) -> NoReturn:
    logging.getLogger("edgeplan").error("error: %s", error)
    with suppress(EdgeplanError):  # where nothing can be written, what stands above has to do
        write_text(ERROR, f"{error.exit_code}\nerror: {error}\n")
    sys.exit(error.exit_code)


if "snakemake" in globals():  # run by a rule, not imported
    run(snakemake)
