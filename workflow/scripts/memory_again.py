"""Measure single cases of the chapter on memory again: `python workflow/scripts/memory_again.py cpu-onednn mobilenetv2:least`.

All other rows stay, and nothing else is measured: the new rows, with the machine that measured them, stand in the table of the
stage for those of the same case. Then `make tables` shows them.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

from edgeplan.chapters.memory.settings import MemoryParams
from edgeplan.chapters.memory.stages.memory import measure_again, measure_memory
from edgeplan.chapters.params import load_params
from edgeplan.errors import EdgeplanError
from edgeplan.support.store import STORED_ROWS_ONLY


def main() -> None:
    """Measure what is named, and write the table of the stage again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("device", help="a device of config/devices")
    parser.add_argument("cases", nargs="+", metavar="MODEL:CASE", help="case: least, or held of memory.limited_model")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    memory = load_params(Path("params.yaml"))
    if not isinstance(memory, MemoryParams):
        raise TypeError("the settings of the chapter are no part of params.yaml")
    results = Path("results") / given.device / "memory"
    where = {
        "device": Path("config/devices") / f"{given.device}.yaml",
        "rows": Path("data/rows") / given.device / "memory",
        "work": Path("work/memory"),
    }
    try:
        measure_again(memory, [(name, case) for name, _, case in (text.partition(":") for text in given.cases)], **where)
        os.environ[STORED_ROWS_ONLY] = "1"
        measure_memory(memory, **where, runs=results / "runs.parquet", environment_path=results / "environment.json")
    except EdgeplanError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
