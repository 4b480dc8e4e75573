"""Starts a plan folder as a program of one's own does. The clock begins when the libraries are loaded."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from edgeplan import native
from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.onednn.cold import require_as_planned
from edgeplan.errors import EdgeplanError
from edgeplan.runtime.library import open_library
from edgeplan.runtime.native_session import open_session
from edgeplan.support import tensors  # noqa: F401  which the first run would import

_NUMPY_SECONDS = 0.1  # numpy's threads wait awake for some 20 ms once it is imported; others import for longer than that


def main() -> None:
    """Do the job of the arguments, told by lines on stdin."""
    job = json.loads(sys.argv[1])
    inputs, cores, folder = dict(np.load(job["inputs"])), sorted(os.sched_getaffinity(0)), Path(job["main"]).parent
    native.library()
    _, library = open_library()
    time.sleep(_NUMPY_SECONDS)
    print("{}", flush=True)
    sys.stdin.readline()

    start = time.perf_counter()
    session = open_session(folder, library=library.path, processors=cores, **job["how"])
    opened = time.perf_counter()
    outputs = session.run(inputs)
    done = time.perf_counter()
    require_as_planned(session)
    parts = {stage: ms / 1e3 for stage, ms in session.stages_ms().items() if stage != "open"}
    print(json.dumps({"open": opened - start, "first_run": done - opened, **parts}), flush=True)
    for asked in sys.stdin:
        start = time.perf_counter()
        if asked == "run\n":
            session.run(inputs)
        else:
            np.savez(job["outputs"], *outputs.values())
        print(json.dumps({"run": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (EdgeplanError, UnsupportedError) as error:
        sys.exit(" ".join(str(error).split()))
