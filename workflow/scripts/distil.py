"""Write what the package ships of some devices, from their results and rows in this checkout: python distil.py DEVICE ..."""

import argparse
import json
import shutil
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from edgeplan.errors import EdgeplanError, FormatError
from edgeplan.predictors.nodes.storing import ARRAYS, CARD, MEASURED
from edgeplan.profiling.predicted import FILE_NAME as PREPARATION
from edgeplan.profiling.predicted import PreparationCosts
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Constants, Row, profile_rows
from edgeplan.support.files import write_atomically
from edgeplan.workspace import KERNELS, RULES, SHIPPED

MAX_BYTES = 4_900_000


def distil_preparation(profiles: Path, environment: Path, folder: Path) -> int:
    """Write the costs of preparing kernels, fitted over all profiled rows of one machine, where the device has such rows.

    `environment`: what is known of the machine that measured the starts. Gives the candidates behind the fits; 0: no rows.
    """
    rows, identity = max(
        ((_rows_of(path), path) for path in sorted(profiles.glob(f"{'[0-9a-f]' * 12}.json"))),
        key=lambda found: len(found[0]),
        default=([], None),
    )
    if identity is None or not rows:
        return 0
    what = json.loads(identity.read_bytes())
    machine = json.loads(environment.read_bytes())
    little = tuple(core for name, core in what["measured_classes"].items() if name == "little")
    found = PreparationCosts.fitted(rows, Constants.model_validate(what["constants"]), Cores(tuple(what["big_cores"]), little))
    found = found.model_copy(
        update={
            "cpu": machine["cpu"] if machine["fingerprint"] == what["fingerprint"] else "",
            "fingerprint": what["fingerprint"],
            "measured_at": datetime.fromtimestamp(max(row.measured_at for row in rows), UTC).date().isoformat(),
        }
    )
    found.write(folder / PREPARATION)
    return found.candidates


def _rows_of(identity: Path) -> list[Row]:
    return [row for rows in profile_rows(identity.parent, identity.stem).values() for row in rows]


def distil(device: Path, results: Path, folder: Path) -> int:
    """Write what the package ships of a device, from its file and its results, and return the bytes of its largest file."""
    copies = {
        folder / device.name: device,
        folder / RULES: results / "fusion" / RULES,
        folder / "environment.json": results / "evaluation" / "environment.json",
        **{folder / name: results / "predictors" / name for name in (CARD, ARRAYS, MEASURED, KERNELS)},
    }
    for target, source in copies.items():
        write_atomically(target, partial(shutil.copyfile, source))
    largest = max(copies, key=lambda path: path.stat().st_size)
    size = largest.stat().st_size
    if size > MAX_BYTES:
        raise FormatError(
            f"{size / 1e6:.2f} MB, which is more than {MAX_BYTES / 1e6} MB",
            where=str(largest),
            next_step="train with fewer trials or seeds (training in params.yaml), then make distil again",
        )
    return size


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
