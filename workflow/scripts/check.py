"""Check params.yaml. Run by DVC itself: a Snakemake around it would bury the message under its own."""

import sys
from pathlib import Path

from edgeplan.chapters.check import check_params
from edgeplan.errors import EdgeplanError
from edgeplan.support.files import write_text
from edgeplan.support.termination import end_with_starter

end_with_starter()
try:
    check_params(Path("params.yaml"))
except EdgeplanError as error:
    print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the message is meant for people
    write_text(Path("work/error.txt"), f"{error.exit_code}\nerror: {error}\n")
    sys.exit(error.exit_code)
