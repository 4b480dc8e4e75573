"""Say how long a run with a profile (config/profiles/<name>.yaml) will take on a device."""

import argparse
import sys
from pathlib import Path

import yaml

from edgeplan.chapters.estimate import estimate, merged, profile, told
from edgeplan.chapters.params import Params
from edgeplan.devices.config import load_device
from edgeplan.errors import EdgeplanError, ParamsError
from edgeplan.support.files import validate

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("profile", type=Path)
parser.add_argument("device")
given = parser.parse_args()
values = merged(yaml.safe_load(Path("params.yaml").read_text()), profile(given.profile))
values["devices"] = [given.device]
try:
    params = validate(values, Params, ParamsError, "params file", f"params.yaml with {given.profile}")
    engines = [load_device(given.device).engine]
except EdgeplanError as error:
    print(f"error: {error}", file=sys.stderr)  # noqa: T201 - the message is meant for people
    sys.exit(error.exit_code)
print(told(estimate(params, engines)))  # noqa: T201 - its output is its purpose
