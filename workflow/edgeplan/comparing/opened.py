"""Holds a plan open that edgeplan-run does not run, and is asked by lines, as of `measurement.process.program`."""

from __future__ import annotations

import json
import sys
import time

from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.opening import open_plan


def main() -> None:
    """Open the plan that the argument names, run it once, and again as it is asked."""
    sys.stdin.readline()
    start = time.perf_counter()
    with open_plan(sys.argv[1]) as session:
        inputs, opened = random_inputs_of(session.inputs), time.perf_counter()
        session.run(inputs)
        print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            session.run(inputs)
            print(json.dumps({"run": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
