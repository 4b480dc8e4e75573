"""What the scripts of all stages share: logging, params, and errors that end with their message."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgeplan.errors import EdgeplanError
from edgeplan.files import write_text
from edgeplan.params import Params, load_params

#: The exit code and the message of the stage that failed last, for who started the whole run.
ERROR = Path("work/error.txt")


@contextmanager
def stage(snakemake: Any) -> Iterator[Params]:
    """Yield the validated params.yaml; log to the rule's log and to the terminal.

    An `EdgeplanError` ends the process with its message and exit code instead of a traceback.
    """
    log = Path(snakemake.log[0])
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal = logging.StreamHandler()
    terminal.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.FileHandler(log, mode="w"), terminal],
    )
    try:
        yield load_params(Path("params.yaml"))
    except EdgeplanError as error:
        logging.getLogger("edgeplan").error("error: %s", error)  # noqa: TRY400 - the message is meant for people
        write_text(ERROR, f"{error.exit_code}\nerror: {error}\n")
        sys.exit(error.exit_code)
