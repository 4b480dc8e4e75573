"""What stands before the whole graph: params.yaml is checked as DVC's stage `check` does it, before a missing file is met."""

import sys
from pathlib import Path

# The package of this checkout: the environment may be shared with another one.
sys.path.insert(0, os.path.abspath("workflow"))

from edgeplan.errors import EdgeplanError
from edgeplan.chapters.check import check_params, refuse_overlay

try:
    check_params(Path("params.yaml"))
    refuse_overlay(config, Path("params.yaml"))
except EdgeplanError as error:
    sys.exit(f"error: {error}")
