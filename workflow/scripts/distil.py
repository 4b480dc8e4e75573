"""Write what the package ships of some devices, from their results and rows in this checkout: python distil.py DEVICE ..."""

import argparse
import sys
from pathlib import Path

from edgeplan.chapters.prediction.distil import distil, distil_preparation
from edgeplan.errors import EdgeplanError
from edgeplan.workspace import SHIPPED

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("devices", nargs="*", metavar="DEVICE")
parser.add_argument("--preparation", action="store_true", help="costs of preparation alone, without predictors")
given = parser.parse_args()
for name in given.devices:
    try:
        device, results = Path("config/devices") / f"{name}.yaml", Path("results") / name
        if not given.preparation:
            print(f"{name}: {distil(device, results, SHIPPED / name) / 1e6:.2f} MB")  # noqa: T201 - its purpose
        profiles = Path("data/rows") / name / "cold_start/profiles"
        if candidates := distil_preparation(profiles, results / "cold/environment.json", SHIPPED / name):
            print(f"{name}: costs of preparation from {candidates} profiled candidates")  # noqa: T201 - likewise
    except EdgeplanError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the message is meant for people
        sys.exit(error.exit_code)
