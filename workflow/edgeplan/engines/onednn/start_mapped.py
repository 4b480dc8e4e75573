"""Starts a model of ours whose weights are mapped as a program of one's own does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from edgeplan.runtime.installed import installed_libraries
from edgeplan.runtime.streaming.measured import MeasuredStream, ready


def main() -> None:
    """Do the job of the arguments, told by lines on stdin."""
    job = json.loads(sys.argv[1])
    inputs = dict(np.load(job["inputs"]))
    folder, library = Path(job["main"]).parent, next(installed_libraries(), "libdnnl.so.3")
    ready(folder, library, alone=False)
    print("{}", flush=True)
    sys.stdin.readline()

    start = time.perf_counter()
    session = MeasuredStream(folder, library, mapped=True)
    opened = time.perf_counter()
    outputs = session.run(inputs)
    print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
    for asked in sys.stdin:
        start = time.perf_counter()
        if asked == "run\n":
            outputs = session.run(inputs)
        else:
            np.savez(job["outputs"], *(outputs[border.name] for border in session.outputs))
        print(json.dumps({"run": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
