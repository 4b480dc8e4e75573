"""What stands before the whole graph: params.yaml is checked as DVC's stage `check` does it, before a missing file is met."""


include: "common.smk"


from pathlib import Path

from edgeplan.chapters.check import check_params, refuse_overlay
from edgeplan.errors import EdgeplanError

try:
    check_params(Path("params.yaml"))
    refuse_overlay(config, Path("params.yaml"))
except EdgeplanError as error:
    sys.exit(f"error: {error}")
