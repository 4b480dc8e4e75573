"""Write what the package ships of some devices, from their results in this checkout: python distil.py DEVICE ..."""

import sys
from pathlib import Path

from edgeplan.chapters.prediction.distil import distil
from edgeplan.errors import EdgeplanError
from edgeplan.workspace import SHIPPED

for name in sys.argv[1:]:
    try:
        found = distil(
            Path("config/devices") / f"{name}.yaml", Path("results") / name, Path("data/zoo/models.parquet"), SHIPPED / name
        )
    except EdgeplanError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the message is meant for people
        sys.exit(error.exit_code)
    print(f"{name}: {found}")  # noqa: T201 - its output is its purpose
