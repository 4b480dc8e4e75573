"""Holds a plan open that edgeplan-run does not run, and is asked by lines, as of `engines.program`."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from edgeplan.measurement.process.inputs import random_inputs_of
from edgeplan.opening import open_plan
from edgeplan.support.tensors import read_outputs, write_outputs


def main() -> None:
    """Open the plan that the first argument names, run it once, and again as it is asked.

    The second argument names a file of inputs, which are drawn without; `save` writes the outputs where the third one says.
    """
    folder, *files = sys.argv[1:]
    sys.stdin.readline()
    start = time.perf_counter()
    with open_plan(folder) as session:
        inputs = read_outputs(files[0]) if files else random_inputs_of(session.inputs)
        opened = time.perf_counter()
        outputs = session.run(inputs)
        print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
        for line in sys.stdin:
            if line.strip() == "save":
                write_outputs(Path(files[1]), outputs)
                print(json.dumps({"saved": 1}), flush=True)
                continue
            start = time.perf_counter()
            session.run(inputs)
            print(json.dumps({"run": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
