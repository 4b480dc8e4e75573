"""Starts a plan folder as a program of one's own does. The clock begins before what only this runtime sets up in a process."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.onednn.cold import open_folder, require_as_planned
from edgeplan.errors import EdgeplanError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.process import prepare_process
from edgeplan.support.machine import fingerprint


def main() -> None:
    """Do the job of the arguments, told by lines on stdin."""
    job = json.loads(sys.argv[1])
    inputs = dict(np.load(job["inputs"]))
    dnnl, cores, folder = Dnnl(), tuple(sorted(os.sched_getaffinity(0))), Path(job["main"]).parent
    print("{}", flush=True)
    sys.stdin.readline()

    start = time.perf_counter()
    prepare_process(dnnl)
    machine = fingerprint()
    ready = time.perf_counter()
    session = open_folder(dnnl, folder, job["threads"], cores, machine, **job["how"])
    opened = time.perf_counter()
    outputs = session.run(inputs)
    done = time.perf_counter()
    require_as_planned(session)
    parts = {stage: ms / 1e3 for stage, ms in session.stages_ms().items() if stage != "open"}
    times = {"setup": ready - start, "open": opened - ready, "first_run": done - opened, **parts}
    print(json.dumps(times), flush=True)
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
