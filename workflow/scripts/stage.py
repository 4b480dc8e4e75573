"""What the scripts of all stages share: logging, params, and errors that end with their message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from edgeplan.errors import EdgeplanError
from edgeplan.params import Params, load_params
from edgeplan.support.files import write_text
from edgeplan.terminal import formatter, prepare
from edgeplan.writable import cannot_write, expected, require_writable

_INSTEAD = "clone to a folder of yours"

#: The exit code and the message of the stage that failed last, for who started the whole run.
ERROR = Path("work/error.txt")


@contextmanager
def stage(snakemake: Any) -> Iterator[Params]:
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
