"""Starts a model of ours whose weights are mapped as a program of one's own does."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from edgeplan.engines.onednn.mapped import open_mapped
from edgeplan.runtime.dnnl import Dnnl


def main() -> None:
    """Do the job of the arguments, told by lines on stdin."""
    job = json.loads(sys.argv[1])
    inputs, files = dict(np.load(job["inputs"])), {role: Path(path) for role, path in job["companions"].items()}
    dnnl = Dnnl()
    dnnl.warm_up(job["threads"])
    print("{}", flush=True)
    sys.stdin.readline()

    start = time.perf_counter()
    session = open_mapped(dnnl, Path(job["main"]), files, inputs)
    opened = time.perf_counter()
    session.run()
    print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
    for asked in sys.stdin:
        start = time.perf_counter()
        if asked == "run\n":
            session.run()
        else:
            np.savez(job["outputs"], *session.outputs().values())
        print(json.dumps({"run": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
