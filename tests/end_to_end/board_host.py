"""A host that measures small networks on a device, one after the other: run by tests.

python board_host.py DEVICE_FILE ROWS COUNT. Prints "measured K" after each batch, errors as commands do.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from quick_bench import SETTINGS, subjects

from edgeplan.cli.ending import guarded
from edgeplan.devices.config import load_device
from edgeplan.measurement.bench import Bench
from edgeplan.terminal import say


def main() -> None:
    """Measure."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    device, rows, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    settings = SETTINGS.model_copy(update={"batch_size": 2, "min_gap_seconds": 0.1})
    everything = subjects(count)
    with Bench(load_device(device), settings, rows) as bench:
        for start in range(0, count, 2):
            bench.measure(everything[start : start + 2])
            say(f"measured {start + 2}")
        say("done")


if __name__ == "__main__":
    guarded(main)
