"""Write the JSON schema of params.yaml from the settings' models: `make schema`."""

from __future__ import annotations

import json
from pathlib import Path

from edgeplan.chapters.params import Params
from edgeplan.support.files import write_text

PATH = Path("config/schema/params.schema.json")


def schema() -> str:
    """The schema as text; descriptions are the docstrings of the models."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Params.model_json_schema()}
    return json.dumps(found, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    write_text(PATH, schema())
